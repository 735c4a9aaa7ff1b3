"""Write the weights and the optimizer state of the last good step, so that a stopped run loses nothing."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.names import parameter_names
from finitune.monitor.probes.ranks import agree, is_spread, wait_for_all, whole
from finitune.monitor.probes.update import Update
from finitune.recording import write_json


def save_last_good(model: nn.Module, update: Update, directory: Path, *, write: bool) -> str | None:
    """`model.safetensors` (or what the model's own `save_pretrained` writes), `optimizer.safetensors` and
    `optimizer.json` under `directory`, by a temporary name and a rename. No pickle.

    All ranks call this, one of them with `write`; a model that is spread over them is gathered, tensor by tensor.
    Returns why nothing was written, None when it was.
    """
    spoiled = [name for name, p in model.named_parameters() if not is_finite(p)]
    (anywhere,) = agree(bool(spoiled))
    if anywhere:
        first = spoiled[0] if spoiled else "on another rank"
        return f"no checkpoint was written, because the model holds non-finite weights ({first})"
    spread = is_spread(list(model.parameters()))
    own_save = None if spread else getattr(model, "save_pretrained", None)
    if write or spread:
        state = {} if callable(own_save) else _independent(model.state_dict(keep_vars=True))
        tensors, numbers = _optimizer_state(model, update.optimizer)
    if write:
        temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        if callable(own_save):
            with contextlib.redirect_stderr(io.StringIO()):  # its progress bar would tear the message apart
                own_save(temporary)
        else:
            save_file(state, temporary / "model.safetensors")
        save_file(tensors, temporary / "optimizer.safetensors")
        write_json(temporary / "optimizer.json", numbers)
        shutil.rmtree(directory, ignore_errors=True)
        temporary.rename(directory)
    wait_for_all()
    update.save(directory)
    return None


def _optimizer_state(model: nn.Module, optimizer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as `<parameter>.<entry>`, everything else as plain numbers."""
    names = parameter_names(model)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "state": {},
    }
    for p, entries in optimizer.state.items():
        name = names.get(id(p), f"parameter{len(tensors)}")
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{name}.{entry}"] = whole(value).detach().clone().contiguous().cpu()
            else:
                numbers["state"].setdefault(name, {})[entry] = value
    return tensors, numbers


def _independent(state: dict[str, Any]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU; tensors that share storage would be refused by the file format."""
    return {k: whole(v).detach().clone().contiguous().cpu() for k, v in state.items() if isinstance(v, torch.Tensor)}

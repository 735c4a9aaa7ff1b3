"""Write the weights and the optimizer state of the last finite step, so that a stopped run loses nothing."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.weights_file import write_tensors
from finitune.recording import write_json


def save_last_good(watched: Watched, directory: Path, *, write: bool) -> str | None:
    """`model.safetensors` (or what the model's own `save_pretrained` writes), `optimizer.safetensors` and
    `optimizer.json` under `directory`, by a temporary name and a rename. No pickle.

    All ranks of the group call this, one of them with `write`; a model that is sharded over them is gathered, tensor
    by tensor. Returns why nothing was written, None when it was.
    """
    group, model = watched.group, watched.model
    device = next((p.device for p in watched.parameters()), torch.device("cpu"))
    spoiled = _spoiled(watched, model)
    (anywhere,) = group.agree(spoiled is not None, device=device)
    if anywhere:
        return f"no checkpoint was written, because the model holds non-finite weights ({spoiled or 'on another rank'})"
    own_save = None if group.split or model is None else getattr(model, "save_pretrained", None)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    failed: Exception | None = None
    if write:
        shutil.rmtree(temporary, ignore_errors=True)
    try:
        if write:
            temporary.mkdir(parents=True)
        if write or group.split:
            if callable(own_save):
                with contextlib.redirect_stderr(io.StringIO()):  # its progress bar would tear the message apart
                    own_save(temporary)
            else:
                write_tensors(temporary / "model.safetensors", _weights(watched, model), write=write)
            numbers: dict[str, Any] = {"groups": _groups(watched), "state": {}}
            write_tensors(temporary / "optimizer.safetensors", _state(watched, numbers), write=write)
        if write:
            write_json(temporary / "optimizer.json", numbers)
            shutil.rmtree(directory, ignore_errors=True)
            temporary.rename(directory)
    except Exception as error:  # a full disk: the other ranks must hear of it, not wait for this one
        failed = error
        shutil.rmtree(temporary, ignore_errors=True)
    (broken,) = group.agree(failed is not None, device=device)
    if broken:
        reason = getattr(failed, "strerror", None) or failed or "another rank could not write"
        return f"no checkpoint was written ({reason})"
    save = getattr(watched.update, "save", None)
    if save is not None:
        save(directory)
    return None


def _spoiled(watched: Watched, model: nn.Module | None) -> str | None:
    named = list(model.named_parameters()) if model is not None else []
    known = {id(p) for _, p in named}
    loose = [(watched.modules.name(p), p) for p in watched.parameters() if id(p) not in known]
    return next((name for name, p in [*named, *loose] if not is_finite(p)), None)


def _weights(watched: Watched, model: nn.Module | None) -> list[tuple[str, Tensor]]:
    """Of every module that owns what is trained, and of loose tensors; a tensor under two names is written twice."""
    roots = watched.modules.owners(watched.parameters()) or ([model] if model is not None else [])
    if model is not None and len(roots) <= 1:
        own = [(name, t) for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)]
    else:
        own = [(watched.modules.name(t), t) for root in roots for t in [*root.parameters(), *root.buffers()]]
    known = {id(t) for _, t in own}
    loose = [(f"{watched.modules.name(p)}", p) for p in watched.parameters() if id(p) not in known]
    return list(dict([*own, *loose]).items())


def _groups(watched: Watched) -> list[dict[str, Any]]:
    groups = getattr(watched.optimizer(), "param_groups", [])
    return [{k: v for k, v in group.items() if k != "params"} for group in groups]


def _state(watched: Watched, numbers: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors as `<parameter>.<entry>`; everything else goes into `numbers`, as it is."""
    state = getattr(watched.optimizer(), "state", {})
    names = {id(p): name for name, p in _weights(watched, watched.model)}
    for place, (p, entries) in enumerate(state.items() if isinstance(state, dict) else ()):
        if not isinstance(entries, dict):
            continue
        name = names.get(id(p), f"parameter{place}")
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                yield f"{name}.{entry}", value
            else:
                numbers["state"].setdefault(name, {})[entry] = value

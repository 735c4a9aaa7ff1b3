"""A captured step on disk: its batches and random number states, for whoever wants to look at them or run them again.

`captures/step00000031-rank00000.safetensors` holds the tensors under their path in the call, for instance
`0.0.kwargs.input_ids` (micro-step, call, path), the `.json` beside it everything else. No pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from torch.utils import _pytree as pytree

from finitune.probes.names import dtype_name
from finitune.recording import write_json
from finitune.replay.capture import Call, Capture

FORMAT = 1
MAX_BYTES = 256 * 2**20
"""Larger batches (images, audio) are described, not written."""


def save_capture(capture: Capture, directory: Path, *, step: int, rank: int, scale: float) -> Path | None:
    """Write the capture of `step`; returns the path of its JSON file, None when no call was captured."""
    tensors: dict[str, Tensor] = {}
    described: list[dict[str, Any]] = []
    for number, micro in enumerate(capture.micro_steps):
        for place, call in enumerate(micro.calls):
            own, description = _described(call, f"{number}.{place}")
            tensors |= own
            described.append(description)
    if not described:
        return None
    path = directory / f"step{step:08d}-rank{rank:05d}.json"
    written = sum(t.nbytes for t in tensors.values()) <= MAX_BYTES
    if written:
        temporary = path.with_suffix(".tmp")
        save_file({k: v.detach().clone().contiguous().cpu() for k, v in tensors.items()}, temporary)
        temporary.replace(path.with_suffix(".safetensors"))
    losses = [None if m.root is None or m.root.numel() != 1 else float(m.root) for m in capture.micro_steps]
    data = {"format": FORMAT, "step": step, "rank": rank, "scale": scale, "scaled_losses": losses}
    write_json(path, {**data, "calls": described, "tensors_written": written})
    return path


def _described(call: Call, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a call by name, and everything else about it."""
    leaves = pytree.tree_flatten_with_path({"args": call.args, "kwargs": call.kwargs})[0]
    tensors = {f"{prefix}.{_dotted(path)}": leaf for path, leaf in leaves if isinstance(leaf, Tensor)}
    tensors[f"{prefix}.random.cpu"] = call.randomness.cpu
    tensors |= {f"{prefix}.random.cuda{index}": state for index, state in call.randomness.devices.items()}
    return tensors, {
        "call": prefix,
        "module": type(call.module).__name__,
        "autocast": dtype_name(call.autocast.dtype) if call.autocast.dtype else None,
        "random_python": call.randomness.python,
        "arguments": {_dotted(p): leaf for p, leaf in leaves if isinstance(leaf, bool | int | float | str)},
        "tensors": {name: {"shape": list(t.shape), "dtype": str(t.dtype)} for name, t in tensors.items()},
    }


def _dotted(path: Any) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)

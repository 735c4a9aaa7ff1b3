"""Batches that are objects: a dataclass, a dictionary of a class of its own, what a library makes of graphs or images.

Containers that pytree knows are looked at before; what these hold and is no tensor may be such an object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.optimizer_state import own_attributes

DEPTH, MOST_PARTS, MOST_SEEN = 4, 64, 512
"""Objects within objects, attributes of one, and parts of all of them, beyond which it is no batch."""
_PLAIN = (str, bytes, int, float, complex, type(None))
_NO_BATCH = (
    nn.Module, torch.optim.Optimizer, torch.Generator, torch.dtype, torch.device, type, FunctionType, MethodType,
    ModuleType,
)  # fmt: skip


def tensors_within(leaf: Any) -> list[Tensor]:
    """Those that an object holds, none of what is no object."""
    return [tensor for _, tensor in named_within(leaf)]


def named_within(leaf: Any) -> list[tuple[str, Tensor]]:
    """The same with where they stand, as `.images` or `['mask']`; what a class calls private is left out of it."""
    found: list[tuple[str, Tensor]] = []
    open_, seen = [("", leaf, DEPTH)], 0
    while open_ and seen < MOST_SEEN:
        place, value, depth = open_.pop()
        seen += 1
        if isinstance(value, Tensor):
            found.append((place, value))
        elif depth:
            inner = [(place + ("" if name.startswith("._") else name), part) for name, part in _parts(value)]
            open_ += [(name, part, depth - 1) for name, part in reversed(inner)]
    return found


def with_tensors(leaf: Any, change: Callable[[Tensor], Any], depth: int = DEPTH) -> Any:
    """A copy of the object that holds `change` of each tensor. Raises ValueError for one that cannot be copied so."""
    if isinstance(leaf, Tensor):
        return change(leaf)
    parts = [(name, part, with_tensors(part, change, depth - 1)) for name, part in _parts(leaf)] if depth else []
    changed = [(name, new) for name, part, new in parts if new is not part]
    if not changed:
        return leaf
    try:
        if isinstance(leaf, tuple):
            made = [new for _, _, new in parts]
            return leaf._make(made) if hasattr(leaf, "_make") else tuple(made)  # pyright: ignore[reportAttributeAccessIssue]
        out = copy.copy(leaf)
        for name, new in changed:
            _put(out, name, new)
    except Exception as error:
        raise ValueError(f"a batch of class {type(leaf).__name__} cannot be copied in part") from error
    return out


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What it holds, by where that stands in it; nothing of what is no batch."""
    if isinstance(value, (*_PLAIN, *_NO_BATCH, Tensor)):
        return
    if isinstance(value, list | tuple):
        held = {f"[{place}]": part for place, part in enumerate(value)} if len(value) <= MOST_PARTS else {}
    elif isinstance(value, Mapping):
        keys = [key for key in value if isinstance(key, str)] if len(value) <= MOST_PARTS else []
        held = {f"['{key}']": value[key] for key in keys}
    else:
        held = {f".{name}": part for name, part in own_attributes(value).items()}
    if len(held) <= MOST_PARTS:
        yield from held.items()


def _put(owner: Any, name: str, part: Any) -> None:
    if name.startswith("."):
        object.__setattr__(owner, name[1:], part)
    elif isinstance(owner, list):
        owner[int(name[1:-1])] = part
    else:
        owner[name[2:-2]] = part

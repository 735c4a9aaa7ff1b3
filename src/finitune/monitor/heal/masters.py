"""Copies of a parameter in float32 that an optimizer steps instead of it, and writes back over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

DEEP = 7
"""How many attributes and containers are looked through: an inner optimizer, its groups, their lists of tensors."""


def masters_of(optimizer: Any, weight: Tensor) -> list[Tensor] | None:
    """The masters of `weight`; empty where the optimizer steps it itself or does not train it; None where there must be
    one and it was not found.
    """
    trained = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    own = str(type(optimizer).step.__module__).startswith("torch.optim.") and any(p is weight for p in trained)
    if own or not weight.requires_grad:
        return []
    if weight.dtype == torch.float32:
        return [] if any(p is weight for p in trained) else None
    found = [t for t in _tensors(optimizer, DEEP, set()) if t.dtype == torch.float32 and t.shape == weight.shape]
    return [t for t in found if torch.equal(t.detach().to(weight.device, weight.dtype), weight.detach())] or None


def is_fragmented(weight: Tensor) -> bool:
    """DeepSpeed's ZeRO 1 and 2 keep masters as parts of one flat tensor, spread over the ranks."""
    return hasattr(weight, "_hp_mapping")


@torch.no_grad()
def write_fragment(weight: Tensor, ids: Sequence[int], rows: Tensor) -> Callable[[], None]:
    """Write float32 `rows`, shape [ids, columns], into what this rank holds of the masters of `weight`, maybe nothing.

    Returns what puts the old bits back.
    """
    mapping: Any = getattr(weight, "_hp_mapping", None)
    if mapping is None:
        return lambda: None
    own, first, columns = mapping.hp_fragment.detach(), mapping.lp_fragment_address.start, weight.shape[1]
    undone: list[tuple[Tensor, Tensor]] = []
    for row, new in zip(ids, rows, strict=True):
        begin, end = max(row * columns, first), min((row + 1) * columns, first + own.numel())
        if begin < end:
            part = own[begin - first : end - first]
            undone.append((part, part.clone()))
            part.copy_(new[begin - row * columns : end - row * columns])

    @torch.no_grad()
    def put_back() -> None:
        for part, before in undone:
            part.copy_(before)

    return put_back


def _tensors(value: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, depth - 1, seen)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each, depth - 1, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        for each in vars(value).values():
            yield from _tensors(each, depth - 1, seen)

"""A constant that a loop adds in its own code: the graph does not keep it, the result of the sum shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.replay.loss_operators import NotReadable


def with_constant(
    term: int, known: Tensor, result: Tensor, first: dict[int, tuple[Tensor, Tensor]], *, in_part: bool
) -> Tensor:
    """The value of a term of which one part is `known`: `result` where that part is as it was, else with the same
    constant added.
    """
    known = known.to(torch.promote_types(known.dtype, result.dtype)).expand_as(result)
    with _disable_current_modes():  # what is computed here is no part of the step that a watch looks at
        values = _with_constant(term, known.detach(), result, first, in_part=in_part)
    changed: Any = _Changed.apply(known, values)
    return changed


def _with_constant(
    term: int, known: Tensor, result: Tensor, first: dict[int, tuple[Tensor, Tensor]], *, in_part: bool
) -> Tensor:
    if term not in first:
        added = _one_number(result, known).expand_as(result) if in_part else result - known
        first[term] = known, added
    before, constant = first[term]
    if in_part:
        result = torch.where(result.isnan(), before + constant, result)
    same = (known == before) | (known.isnan() & before.isnan())
    if not bool((same | torch.isfinite(constant)).all()):
        raise NotReadable("an operand that the graph does not keep, where the model's output was not finite")
    return torch.where(same, result, known + constant)


def _one_number(result: Tensor, known: Tensor) -> Tensor:
    """The number that was added to `known`; raises NotReadable where it is nowhere seen, or more than one number."""
    constant, seen = result - known, torch.isfinite(result) & torch.isfinite(known)
    rounding = 4 * torch.finfo(result.dtype).eps
    if not seen.any() or constant[seen].max() - constant[seen].min() > rounding * result[seen].abs().max():
        raise NotReadable("a term without a graph within a relu, of which too little is known")
    return constant[seen].median()


class _Changed(torch.autograd.Function):
    """A tensor with other values, whose gradient is its own."""

    @staticmethod
    def forward(ctx: Any, known: Tensor, values: Tensor) -> Tensor:
        # An operator that takes `known`, so that a watch can follow what is bad in it.
        return torch.where(torch.ones_like(values, dtype=torch.bool), values.to(known.dtype), known)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None

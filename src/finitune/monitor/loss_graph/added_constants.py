"""A constant that a loop adds in its own code: the graph does not keep it, the result of the sum shows it.

Beside a number that is far larger the result shows little of it. Where a sum in the code that runs spells an operand
that gives the very same result, that is the constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.loss_graph.loss_operators import NotReadable
from finitune.monitor.user_code.sums import gives, same, sums


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
        added = _one_number(result, known).expand_as(result) if in_part else _added(result, known)
        first[term] = known, added
    before, constant = first[term]
    if in_part:
        result = torch.where(result.isnan(), before + constant, result)
    as_was = (known == before) | (known.isnan() & before.isnan())
    if not bool((as_was | torch.isfinite(constant)).all()):
        raise NotReadable("an operand that the graph does not keep, where the model's output was not finite")
    return torch.where(as_was, result, known + constant)


def spelled(result: Tensor, *, cheap: bool) -> Tensor | None:
    """The constant in `result`, where the code that runs holds all of the sum, or just one that may be it."""
    fitting: list[Tensor] = []
    for other, constant in sums(cheap=cheap):
        if other is not None and gives(other, constant, result):
            return constant
        if other is None and constant.ndim and constant.device == result.device and constant.shape == result.shape:
            fitting.append(constant)
    return fitting[0] if len(fitting) == 1 else None


def _added(result: Tensor, known: Tensor) -> Tensor:
    """Raises NotReadable where the code that runs holds `known` as it was in the step, and it was another."""
    found: list[Tensor] = []
    for other, constant in sums():
        if other is not None and gives(other, constant, result) and not same(other, known):
            raise NotReadable("what the model puts out is not what it was in the step")
        if constant.ndim and gives(known, constant, result):
            added = constant.expand_as(result)
            found += [added] if not any(torch.equal(added, one) for one in found) else []
    return found[0] if len(found) == 1 else result - known


def _one_number(result: Tensor, known: Tensor) -> Tensor:
    """The number that was added to `known`, NaN where all of that was bad; raises NotReadable where it is nowhere seen,
    or more than one number.
    """
    constant, seen = result - known, torch.isfinite(result) & torch.isfinite(known)
    if not torch.isfinite(known).any():
        return constant.new_tensor(torch.nan)
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

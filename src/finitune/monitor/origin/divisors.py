"""What an operator divides by, where that is 0: elements of a tensor, a number, the count of what is in a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from finitune.monitor.probes.finite import has_memory

_DIVISIONS = ("div", "true_divide", "_div_by")
_MEANS = ("mean", "var", "var_mean", "std", "std_mean")


class Divisor(NamedTuple):
    """How much of it is 0, in words, and whether the batch alone makes it, of a number that is trained."""

    zeros: str
    by_batch: bool


def zeros_in(operator: str, args: Sequence[Any]) -> Divisor | None:
    """None where no divisor is 0, or the operator does not divide."""
    if operator in _MEANS and isinstance(args[0], Tensor) and not args[0].numel():
        return Divisor("no element goes in", by_batch=False)
    divisor = args[1] if operator in _DIVISIONS and len(args) > 1 else None
    if isinstance(divisor, Tensor) and divisor.numel() and has_memory(divisor):
        zeros = int((divisor == 0).sum())
        words = f"{zeros} of {divisor.numel()} elements of the divisor are 0"
        trained = isinstance(args[0], Tensor) and args[0].requires_grad
        return Divisor(words, by_batch=trained and not divisor.requires_grad) if zeros else None
    zero = isinstance(divisor, int | float) and divisor == 0
    return Divisor("the divisor is 0", by_batch=False) if zero else None

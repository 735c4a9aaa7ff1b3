"""What an operator divides by, where that is 0: elements of a tensor, a number, the count of what is in a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from finitune.monitor.probes.finite import has_memory

_DIVISIONS = ("div", "true_divide", "_div_by")
_MEANS = ("mean", "var", "var_mean", "std", "std_mean")


def zeros_in(operator: str, args: Sequence[Any]) -> str | None:
    """How much of it is 0, in words; None where nothing is, or the operator does not divide."""
    if operator in _MEANS and isinstance(args[0], Tensor) and not args[0].numel():
        return "no element goes in"
    divisor = args[1] if operator in _DIVISIONS and len(args) > 1 else None
    if isinstance(divisor, Tensor) and divisor.numel() and has_memory(divisor):
        zeros = int((divisor == 0).sum())
        return f"{zeros} of {divisor.numel()} elements of the divisor are 0" if zeros else None
    return "the divisor is 0" if isinstance(divisor, int | float) and divisor == 0 else None

"""By what a loop multiplies the terms that its loss is a sum of: a schedule of these makes it another loss."""

from __future__ import annotations

import math

from torch import Tensor

from finitune.monitor.loss_graph.loss_operators import Kept
from finitune.monitor.loss_graph.objective import SUMS, Input, Objective, Term

FAR = 1.3
"""A factor beside another has changed by more than this: as far as a loss must rise to be that of other weights."""


def is_weighted_otherwise(now: Objective, then: Objective) -> bool:
    """The loss has terms that it did not have then, beside some that it had, or weighs them in another way beside each
    other. Not where the largest factor has grown beyond 1, the most that one of a mean is: a multiplier without a bound
    is at fault itself. Terms that are computed alike, as of micro-steps or samples, count together.
    """
    factors, before = _factors(now), _factors(then)
    most, most_before = max(factors.values()), max(before.values())
    if not factors.keys() & before.keys() or not most <= FAR * max(most_before, 1.0):
        return False
    if factors.keys() != before.keys():
        return True
    pairs = [(factors[term] / (most or 1.0), before[term] / (most_before or 1.0)) for term in factors]
    return any(not max(pair) <= FAR * min(pair) for pair in pairs)


def _factors(objective: Objective) -> dict[str, float]:
    """Magnitude of the factor of each term, by how the term is computed."""
    found: dict[str, float] = {}
    _add_terms(objective.whole, 1.0, found)
    return found


def _add_terms(of: Input, factor: float, found: dict[str, float]) -> None:
    if isinstance(of, Term):
        if of.name in SUMS:
            alpha = float(of.kept.get("alpha") or 1.0)
            for place, each in enumerate(of.inputs):
                if each is not None:
                    _add_terms(each, factor * (alpha if place else 1.0), found)
            return
        number = _factor(of.name, of.kept)
        inner = [each for each in of.inputs if each is not None]
        if number is not None and len(inner) == 1:
            _add_terms(inner[0], factor * number, found)
            return
    form = _form(of)
    found[form] = found.get(form, 0.0) + abs(factor)


def _factor(name: str, kept: Kept) -> float | None:
    """Of a product with one number, or a division by one; None for any other operator."""
    if name in ("NegBackward0", "AddBackward1", "SubBackward1", "RsubBackward1"):
        return 1.0
    constants = [number for side in ("left", "right") if (number := kept.get(side)) is not None]
    if name not in ("MulBackward0", "DivBackward0") or len(constants) != 1:
        return None
    if isinstance(constants[0], Tensor) and constants[0].numel() != 1:
        return None
    number = float(constants[0])
    if name == "MulBackward0":
        return number
    return 1.0 / number if kept.get("left") is None and number and math.isfinite(number) else None


def _form(of: Input) -> str:
    if not isinstance(of, Term):
        return "" if of is None else "output"
    return f"{of.name}({','.join(map(_form, of.inputs))})"

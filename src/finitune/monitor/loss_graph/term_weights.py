"""By what a loop multiplies the terms that its loss is a sum of: a schedule of these makes it another loss."""

from __future__ import annotations

from finitune.monitor.loss_graph.objective import SUMS, Input, Objective, Term

_PLAIN = ("NegBackward0", "AddBackward1", "SubBackward1", "RsubBackward1")


def is_weighted_otherwise(now: Objective, then: Objective, *, far: float) -> bool:
    """The loss has terms that it did not have then, beside some that it had, or weighs them in another way: a factor
    beside another has changed more than `far` times. Not where the largest factor has grown beyond 1, the most that one
    of a mean is: a multiplier without a bound is at fault itself. Terms that are computed alike, as of micro-steps or
    samples, count together.
    """
    factors, before = _factors(now), _factors(then)
    most, most_before = max(factors.values()), max(before.values())
    if not factors.keys() & before.keys() or not most <= far * max(most_before, 1.0):
        return False
    if factors.keys() != before.keys():
        return True
    pairs = [(factors[term] / (most or 1.0), before[term] / (most_before or 1.0)) for term in factors]
    return any(not max(pair) <= far * min(pair) for pair in pairs)


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
        times = 1.0 if of.name in _PLAIN else of.times
        if times is not None and of.operand is not None:
            _add_terms(of.operand, factor * times, found)
            return
    form = _form(of)
    found[form] = found.get(form, 0.0) + abs(factor)


def _form(of: Input) -> str:
    if not isinstance(of, Term):
        return "" if of is None else "output"
    return f"{of.name}({','.join(map(_form, of.inputs))})"

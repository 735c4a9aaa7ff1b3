"""Losses that the model computes itself: the loop only scales an output of it, or sums what each token has lost."""

from __future__ import annotations

from collections.abc import Container

from finitune.monitor.loss_graph.loss_operators import LINEAR
from finitune.monitor.loss_graph.objective import Input, Objective, Term

_SCALES = ("MulBackward0", "DivBackward0")


def is_output(objective: Objective) -> bool:
    """The loss is an output of the model, but for what it is multiplied with or divided by."""
    return isinstance(_behind(objective.whole, _SCALES), int)


def is_sum_of_output(objective: Objective) -> bool:
    """It is an output, or a weighted sum or mean over one."""
    return isinstance(_behind(objective.whole, LINEAR), int)


def _behind(of: Input, names: Container[str]) -> Input:
    """What operators of these names, of one operand with a graph each, are computed of at last."""
    while isinstance(of, Term) and of.name in names:
        inner = [each for each in of.inputs if each is not None]
        if len(inner) != 1:
            return of
        of = inner[0]
    return of

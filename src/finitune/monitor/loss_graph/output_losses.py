"""Losses that the model computes itself: the loop only scales an output of it, or sums what each token has lost."""

from __future__ import annotations

from collections.abc import Container

from finitune.monitor.loss_graph.known_values import SCALES
from finitune.monitor.loss_graph.loss_operators import LINEAR
from finitune.monitor.loss_graph.objective import Input, Objective, Term


def is_output(objective: Objective) -> bool:
    """The loss is an output of the model, but for what it is multiplied with or divided by."""
    return isinstance(_behind(objective.whole, SCALES), int)


def is_sum_of_output(objective: Objective) -> bool:
    """It is an output, or a weighted sum or mean over one."""
    return isinstance(_behind(objective.whole, LINEAR), int)


def _behind(of: Input, names: Container[str]) -> Input:
    """What operators of these names, of one operand with a graph each, are computed of at last."""
    while isinstance(of, Term) and of.name in names:
        of = of.operand
    return of

"""A run in which every number is finite and nothing is learned."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from finitune.diagnosis.logged.signs import CONVERGED, SUDDEN, Sign, Trouble, place_at
from finitune.sources.logs.attempt import Attempt

HUGE_NORM = 1e6
"""Beside it a clipped gradient moves nothing: at 1.0 each element loses six digits. Sound runs stay below 1e3."""
ROUNDS = 2
"""So many times an epoch must be printed alike, number for number, before its weights are thought to stand still."""
LONGEST_ROUND = 10_000
FEW_DIGITS = 2
"""Losses printed with no more decimals are alike on any plateau."""


def standstill(attempt: Attempt) -> Trouble | None:
    """Every number is finite, and nothing is learned: updates are nothing beside a huge norm, or the loss repeats."""
    loss, norm = attempt.trace("loss"), attempt.trace("grad_norm")
    if attempt.rewards or len(loss) < SUDDEN:
        return None
    huge = float(np.median(norm.values)) if len(norm) else 0.0
    period = _period(np.asarray(loss.values))
    if HUGE_NORM < huge < math.inf:
        name, trace = "huge-norm", norm
        text = f"the gradient norm is about {huge:.3g} throughout: clipped, every other gradient is lost beside it"
    elif period:
        name, trace = "loss-repeats", loss
        again = f"the same {period} losses again and again" if period > 1 else "the same loss in every row"
        text = f"the log shows {again}, to the last digit: no weight moves"
    else:
        return None
    step = int(trace.steps[0])
    place = place_at(attempt, trace, step)
    sign = Sign(name=name, text=text, place=place)
    return Trouble(symptom="standstill", step=step, text=text, place=place, signs={name: sign})


def _period(values: npt.NDArray[np.float64]) -> int | None:
    """The number of rows after which the losses begin anew, number for number; None where they do not."""
    if not len(values) or float(np.min(values)) < CONVERGED or (np.round(values, FEW_DIGITS) == values).all():
        return None
    begins = np.flatnonzero(values[: LONGEST_ROUND + 1] == values[0])[1:]
    for period in begins[begins <= len(values) // ROUNDS].tolist():
        if (values[period:] == values[:-period]).all():
            return int(period)
    return None

"""Every number is finite, and nothing is learned.

## What it means

The weights do not move: every update rounds away, no gradient arrives, a factor is 0, or one row's gradient is so large
that beside it, once clipped, all others vanish.

## How it is seen

In a log of at least 20 rows. Either the losses repeat, number for number and in more than two decimals, as they do when
the same data meet the same weights: with the period of an epoch, at least twice. Or the median gradient norm is beyond
1e6, and the loss has moved by less than a fifth from the first quarter to the last: clipped to 1, an element of such a
gradient is below the eps of Adam (1e-8) unless it is more than a hundredth of the whole (Kingma and Ba 2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from finitune.chapter import Sighting
from finitune.series import Series

LEAST_ROWS = 20
HUGE_NORM = 1e6
MOVED = 1.2
ROUNDS = 2
LONGEST_ROUND = 10_000
DECIMALS = 2
ROUNDED = 0.01
"""Losses below it are printed with few digits that are not 0, and are alike once a run has converged."""
QUARTERS = 4

UNMOVED = "the weights of two checkpoints: they are the same"


def review(loss: Series, grad_norm: Series | None = None, *, rewards: bool = False) -> Sighting | None:
    if rewards or len(loss) < LEAST_ROWS:
        return None
    losses = [value for _, value in loss.pairs()]
    huge = median(norm for _, norm in grad_norm.pairs()) if grad_norm else 0.0
    if HUGE_NORM < huge < math.inf and not _moved(losses):
        text = f"the gradient norm is about {huge:.3g} throughout: clipped, every other gradient is lost beside it"
        first = grad_norm.pairs()[0][0] if grad_norm else 0
        return Sighting(step=first, text=text, confirm=UNMOVED, numbers={"grad_norm": huge}, observation="huge-norm")
    period = _period(losses)
    if not period:
        return None
    again = f"the same {period} losses again and again" if period > 1 else "the same loss in every row"
    text = f"the log shows {again}, to the last digit: no weight moves"
    numbers = {"period": period}
    return Sighting(step=loss.pairs()[0][0], text=text, confirm=UNMOVED, numbers=numbers, observation="loss-repeats")


def _moved(losses: Sequence[float]) -> bool:
    quarter = len(losses) // QUARTERS
    early, late = median(losses[:quarter]), median(losses[-quarter:])
    return not (early and late and 1 / MOVED < early / late < MOVED)


def _period(values: Sequence[float]) -> int | None:
    """The number of rows after which the losses begin anew, number for number; None where they do not."""
    if all(value == round(value, DECIMALS) for value in values) or min(map(abs, values)) < ROUNDED:
        return None
    begins = [at for at in range(1, min(LONGEST_ROUND, len(values) // ROUNDS) + 1) if values[at] == values[0]]
    return next((period for period in begins if values[period:] == values[:-period]), None)

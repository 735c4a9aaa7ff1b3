"""The loss of one step lies far above all that the run has shown.

## What it means

A batch that is not like the others (random labels, a broken sample, inputs in another unit), or weights that an update
has just damaged. A single spike from which the loss returns does little harm by itself; what it did to the moments of
the optimizer may last for tens of steps.

## How it is seen

The logarithm of the loss, by peaks over threshold: the tail of the 256 steps before, in which no spike counts for more
than one healthy step in a thousand does. A hundredth of the level at the beginning is added, so that noise about zero
is no spike. Below a chance of 10^-4 (the budget of the research prototype, without a false alarm in 8,900 steps) it is
a note: other data raise the loss as well, and stay.

It is a suspicion below 10^-7, once 256 steps are known and where at most one of the 512 before was as high: at ten
times what the run began with; or above what it began with, once the loss is back for 4 steps: one batch was bad. A loss
that is negative now and then is not judged: it has no logarithm, and its level no meaning; grad-norm-spike judges such
a run.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.outliers import beginning, chance_above, finite, is_new, median
from finitune.series import Series

WINDOW, JUST = 256, 16
RARE, VERY_RARE = 1e-4, 1e-7
FAR = 10.0
BACK = 4
FLOOR = 0.01
LEAST_SCALE = 0.015
"""Of the tail of logarithms: where the loss hardly varies, a hundredth more is no spike."""
CONFIRM = "the loss of that batch with earlier weights: as high if the batch is bad, as low as usual if the weights are"


def see(loss: Series) -> Sighting | None:
    for back in (0, BACK):
        *before, value = loss.window(JUST + 1, before=back) or [math.nan]
        if 0 < value < math.inf and sum(value <= one < math.inf for one in before) <= 1:
            return _spike(loss, value, back)
    return None


def _spike(loss: Series, value: float, back: int) -> Sighting | None:
    """What is said of `value`, the loss `back` steps ago."""
    known, head = finite(loss.window(WINDOW, before=back + 1)), beginning(loss)
    if not known or len(head) < 2 or min(*known, *head) < 0 or not any(head):
        return None
    floor = FLOOR * median(head) or FLOOR * max(head)
    logarithms = [math.log(one + floor) for one in known]
    chance = chance_above(math.log(value + floor), logarithms, LEAST_SCALE)
    begin, usual = sorted(head)[-2], median(known[-JUST:])
    if chance > RARE:
        return None
    rare = chance < VERY_RARE and value > begin and is_new(loss, value, back)
    bad = rare and (value > FAR * begin if not back else _is_back(loss, value, begin, usual))
    if back and not bad:
        return None
    when = f" at step {loss.tail(back + 1)[0][0]}, and back since" if back else ""
    times = f", {value / usual:.2g} times the usual" if usual else ""
    return Sighting(
        step=loss.last_step,
        text=f"loss {value:.4g}{times}{when}",
        level="suspicion" if bad else "note",
        confirm=CONFIRM,
        numbers={"loss": value, "usual": usual, "begin": begin, "chance": chance},
    )


def _is_back(loss: Series, value: float, begin: float, usual: float) -> bool:
    """Are all losses since nearer to the usual than to `value`? What was far above the beginning was said at once."""
    return value <= FAR * begin and all(one * one < value * usual for one in loss.window(BACK))

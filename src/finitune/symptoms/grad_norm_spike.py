"""The gradient norm of one step lies far above all that the run has shown.

## What it means

A batch unlike the others, a sharp place of the loss surface, weights that were overwritten, or a fault of the
hardware. Clipping bounds the step that is taken, not its direction, and Adam remembers the square for a thousand
steps.

## How it is seen

The logarithm of the norm before clipping, by peaks over threshold over the 256 steps before (loss-spike says how). A
note below a chance of 10^-4. A suspicion below 10^-9 and at ten times both the usual norm and all that the run began
with, once 256 steps are known and where at most one of the 512 before was as high: gradient norms have heavy tails, and
spikes are part of many a healthy run.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.outliers import beginning, chance_above, is_new, median
from finitune.series import Series

WINDOW, JUST = 256, 16
RARE, VERY_RARE = 1e-4, 1e-9
FAR = 10.0
LEAST_SCALE = 0.05
"""Of the tail of logarithms."""


def see(grad_norm: Series) -> Sighting | None:
    value = grad_norm.last
    if not 0 < value < math.inf:
        return None
    if sum(value <= one < math.inf for one in grad_norm.window(JUST, before=1)) > 1:
        return None
    known = [one for one in grad_norm.window(WINDOW, before=1) if 0 < one < math.inf]
    chance = chance_above(math.log(value), [math.log(one) for one in known], LEAST_SCALE)
    if chance > RARE:
        return None
    usual, head = median(known[-JUST:]), sorted(beginning(grad_norm))
    begin = head[-2] if len(head) > 1 else 0.0
    far = chance < VERY_RARE and value > FAR * max(begin, usual) and is_new(grad_norm, value)
    return Sighting(
        step=grad_norm.last_step,
        text=f"gradient norm {value:.4g}, {value / usual:.2g} times the usual",
        level="suspicion" if far else "note",
        confirm="the same step run again, and its batch with earlier weights",
        numbers={"grad_norm": value, "usual": usual, "begin": begin, "chance": chance},
    )

"""The loss scale of a float16 run falls and does not come back.

## What it means

Every step overflows, whatever the scale, so the scaler halves it until it reaches its minimum. A few skipped steps
at the start are normal: a dynamic scale begins too high on purpose and settles.

## How it is seen

The last 8 steps were all skipped, or the scale is 16 or less and at least half of the last 8 steps were skipped.
A sound run settles above 2**10 (seed incidents: largest scale without overflow 2**13 to 2**15), and loses a step only
where the scale grows, every 1000 or 2000 steps. The forecast is the rate at which the scale has fallen, prolonged.
"""

from __future__ import annotations

import math
from itertools import dropwhile, pairwise
from statistics import fmean

from finitune.chapter import Sighting
from finitune.series import Series

WINDOW = 8
EXHAUSTED = 16.0


def see(loss_scale: Series, skipped: Series) -> Sighting | None:
    recent = skipped.window(WINDOW)
    lost = int(sum(recent))
    if len(recent) < WINDOW or not skipped.last:
        return None
    if lost < WINDOW and not (loss_scale.last <= EXHAUSTED and lost >= WINDOW // 2):
        return None
    left = max(0, math.ceil(math.log2(loss_scale.last))) if loss_scale.last > 0 else 0
    soon = steps_left(loss_scale)
    return Sighting(
        step=skipped.last_step,
        text=f"loss scale {loss_scale.last:g} after {lost} skipped steps of {WINDOW}; "
        + (f"at this rate at its minimum in {soon} steps" if soon else f"{left} halvings from 1"),
        numbers={"loss_scale": loss_scale.last, "skipped": float(lost), "halvings_left": float(left)},
    )


def steps_left(loss_scale: Series, minimum: float = 1.0) -> int | None:
    """Steps until the scale is at `minimum`, at the rate at which it fell last; None while it does not fall.

    The rate is halvings per step since the scale began to fall, over the newest `WINDOW` steps at most: a step that
    the hysteresis of the scaler swallowed before says nothing about it.
    """
    scales = loss_scale.window(WINDOW + 1)
    if len(scales) < 2 or not all(0 < scale < math.inf for scale in scales) or scales[-1] <= minimum:
        return None
    halvings = [math.log2(earlier / later) for earlier, later in pairwise(scales)]
    falling = list(dropwhile(lambda halving: halving <= 0, halvings))
    rate = fmean(falling) if falling else 0.0
    return math.ceil(math.log2(scales[-1] / minimum) / rate) if rate > 0 else None

"""The loss scale of a float16 run falls and does not come back.

## What it means

Every step overflows, whatever the scale, so the scaler halves it until it reaches its minimum. A few skipped steps at
the start are normal: a dynamic scale begins too high on purpose and settles.

## How it is seen

The last 8 steps were all skipped, or half of them at a scale of 16 or less: a suspicion, but a note as long as the run
has taken no step yet and the scale is above 16: it settles, from whatever it began with. Or the scale has fallen by
half or more in each of three times 50 steps. At a scale of 1 or less the gradients themselves overflow: an incident. A
healthy run settles above 2**10 (seed incidents: largest scale without overflow 2**13 to 2**15), and loses a step only
where the scale grows, every 1000 or 2000 steps. The forecast is the rate at which the scale has fallen, prolonged.
"""

from __future__ import annotations

import math
from itertools import dropwhile, pairwise
from statistics import fmean

from finitune.chapter import Sighting
from finitune.series import Series

WINDOW = 8
EXHAUSTED, HOPELESS = 16.0, 1.0
SLOPE, TIMES = 50, 3
SETTLING = 128


def see(skipped: Series, loss_scale: Series) -> Sighting | None:
    recent = skipped.window(WINDOW)
    lost = sum(value > 0 for value in recent)
    if len(recent) < WINDOW or not skipped.last > 0:
        return None
    scale = loss_scale.last
    all_lost, exhausted = lost == WINDOW, scale <= EXHAUSTED and lost >= WINDOW // 2
    if not (all_lost or exhausted or _falls_steadily(loss_scale)):
        return None
    settling = len(skipped) <= SETTLING and all(skipped.head(SETTLING)) and scale > EXHAUSTED
    left = max(0, math.ceil(math.log2(scale))) if 0 < scale < math.inf else 0
    soon = steps_left(loss_scale)
    return Sighting(
        step=skipped.last_step,
        text=f"loss scale {scale:g} after {lost} skipped steps of {WINDOW}; "
        + (f"at this rate at its minimum in {soon} steps" if soon else f"{left} halvings from 1"),
        level="incident" if scale <= HOPELESS and exhausted else "note" if settling else "suspicion",
        confirm="the same step without a loss scale: it is not finite either where the forward overflows",
        numbers={"loss_scale": scale, "skipped": float(lost), "halvings_left": float(left)},
    )


def _falls_steadily(loss_scale: Series) -> bool:
    """Half or less of what it was, in each of the newest windows."""
    scales = loss_scale.window(SLOPE * TIMES + 1)
    marks = scales[::SLOPE]
    return len(marks) == TIMES + 1 and all(later <= earlier / 2 for earlier, later in pairwise(marks))


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

"""The loss scale of a float16 run falls and does not come back.

## What it means

Every step overflows, whatever the scale, so the scaler halves it until it reaches its minimum. A few skipped steps
at the start are normal: a dynamic scale begins too high on purpose and settles.

## How it is seen

The last 8 steps were all skipped, or the scale is 16 or less and at least half of the last 8 steps were skipped.
A sound run settles above 2**10 (seed incidents: largest scale without overflow 2**13 to 2**15), and loses a step only
where the scale grows, every 1000 or 2000 steps.
"""

from __future__ import annotations

import math

from finitune.signal import Series
from finitune.symptom import Sighting

WINDOW = 8
EXHAUSTED = 16.0


def see(loss_scale: Series, skipped: Series) -> Sighting | None:
    recent = skipped.window(WINDOW)
    lost = int(recent.sum())
    if len(recent) < WINDOW or not skipped.last:
        return None
    if lost < WINDOW and not (loss_scale.last <= EXHAUSTED and lost >= WINDOW // 2):
        return None
    left = max(0, math.ceil(math.log2(loss_scale.last))) if loss_scale.last > 0 else 0
    return Sighting(
        step=skipped.last_step,
        text=f"loss scale {loss_scale.last:g} after {lost} skipped steps of {WINDOW}; {left} halvings from 1",
        numbers={"loss_scale": loss_scale.last, "skipped": float(lost), "halvings_left": float(left)},
    )

"""The learning rate is many times as large as ever before, from one step to the next.

## What it means

A scheduler made for another number of steps or stepped elsewhere, a resume that lost it, a group added at another
rate, a factor for the number of devices applied twice.

## How it is seen

Five times the step before, and twice the largest of the whole run, after 32 steps at a rate above zero. Warm-ups climb
by less in a step once they have begun, restarts and cycles come back to where they were.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series

JUMP, ABOVE_ALL, KNOWN = 5.0, 2.0, 32


def see(lr: Series) -> Sighting | None:
    value = lr.last
    recent = lr.window(KNOWN, before=1)
    if not math.isfinite(value) or len(recent) < KNOWN or not value > JUMP * recent[-1] or not min(recent) > 0:
        return None
    largest = max(lr.window(len(lr), before=1))
    if not value > ABOVE_ALL * largest:
        return None
    return Sighting(
        step=lr.last_step,
        text=f"learning rate {value:.3g} after {recent[-1]:.3g}, {value / largest:.2g} times the largest before",
        confirm="the schedule: what rate this step was to have",
        numbers={"lr": value, "before": recent[-1], "largest": largest},
    )

"""The loss climbs and stays up: training undoes what it had learned.

## What it means

The updates are too large for the curvature, or the data changed. Only a look at an earlier batch tells these
two apart, so a sighting is a suspicion until the monitor has taken that look.

## How it is seen

Early (fewer than 48 steps): three steps in a row, all above twice the median so far and above the first loss.
Later: a CUSUM of the logarithm of the loss. Baseline median and MAD (floor 0.02) of the 128 steps before the last
32; increments clipped to +-3 deviations, drift 0.75, alarm at 14 (research on 8.9 k healthy steps: no alarm), and
the recent median at least a fifth above the baseline.
Non-finite values never enter a baseline. A loss that begins at zero or passes it (policy gradients) is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from finitune.chapter import Sighting
from finitune.series import Series, lowest_level

EARLY = 48
EARLY_RATIO = 2.0
IN_A_ROW = 3
BASELINE = 128
RECENT = 32
MAD_FLOOR = 0.02
DRIFT = 0.75
ALARM = 14.0
RISE = 1.2
CLIP = 3.0


def see(loss: Series) -> Sighting | None:
    last = loss.last
    if not math.isfinite(last) or last <= 0:
        return None
    window = loss.window(BASELINE + RECENT)
    if lowest_level([loss.first, *window]) is None:
        return None
    values = [value for value in window if math.isfinite(value) and value > 0]
    before = _level_before(values, whole=len(loss) <= BASELINE + RECENT)
    if before is None:
        return None
    text = f"loss {last:.4g}, {last / before:.2g} times its level before"
    return Sighting(step=loss.last_step, text=text, numbers={"loss": last, "before": before})


def _level_before(values: Sequence[float], *, whole: bool) -> float | None:
    """The level that the loss has left, None when it has not. `whole`: the run has no steps before these."""
    if len(values) < EARLY:
        if not whole or len(values) <= IN_A_ROW:
            return None
        earlier, recent = values[:-IN_A_ROW], values[-IN_A_ROW:]
        level = median(earlier)
        risen = min(recent) > EARLY_RATIO * level and min(recent) > values[0]
        return level if risen else None
    count = min(RECENT, len(values) // 2)
    baseline, recent = [math.log(v) for v in values[:-count]], [math.log(v) for v in values[-count:]]
    middle = median(baseline)
    deviation = max(1.4826 * median(abs(value - middle) for value in baseline), MAD_FLOOR)
    total = 0.0
    for value in recent:
        total = max(0.0, total + min(max((value - middle) / deviation, -CLIP), CLIP) - DRIFT)
    risen = median(recent) - middle > math.log(RISE)
    return math.exp(middle) if total > ALARM and risen else None

"""The loss leaves its first row at once, and the run never comes back to it.

## What it means

The first updates went too far: the run goes on in another place, learns nothing that it had, and stays finite.

## How it is seen

In a log of 20 rows or more that has ended: three rows in a row with twice the first loss, a gradient norm that has
risen ten times as much as the loss, and up to the end neither comes back down to its first value. A first row that was
a low draw has a low gradient in proportion; only another place on the surface of the loss has another ratio.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import NEAR_ZERO, Series

LEAST_ROWS, IN_A_ROW = 20, 3
LOSS_RATIO, NORM_RATIO = 2.0, 10.0


def review(loss: Series, grad_norm: Series, *, rewards: bool = False) -> Sighting | None:
    rows = [(step, value, grad_norm.at(step)) for step, value in loss.pairs()]
    rows = [row for row in rows if math.isfinite(row[1]) and math.isfinite(row[2])]
    if rewards or len(rows) < LEAST_ROWS or rows[0][1] < NEAR_ZERO or rows[0][2] <= 0:
        return None
    (_, first, norm), *later = rows
    if min(value for _, value, _ in later) <= first or min(one for *_, one in later) <= norm:
        return None
    left = [value > LOSS_RATIO * first and one / norm > NORM_RATIO * value / first for _, value, one in later]
    at = next((n for n in range(len(left) - IN_A_ROW + 1) if all(left[n : n + IN_A_ROW])), None)
    if at is None:
        return None
    step, value, one = later[at]
    text = f"loss {value:.4g}, {value / first:.2g} times the first, beside {one / norm:.2g} times its gradient norm"
    return Sighting(step=step, text=f"{text} at step {step}, and neither has come back", observation="divergence")

"""The gradient norm has risen and stays up.

## What it means

Gradients of earlier steps are added to those of each new one (zero_grad is not called, or the sum over micro-batches
is not divided), the weights run away, or the data changed. Under Adam the loss may show it late: the optimizer divides
by the size of the gradient.

## How it is seen

Three quarters of the last 32 norms are above three times the 0.9 quantile of the 128 before, and above all that the
run began with. The same quantities as in divergence, without a deviation: quantiles of heavy tails are what they are.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.outliers import beginning, finite
from finitune.series import Series

BASELINE, RECENT = 128, 32
RISE = 3.0


def see(grad_norm: Series) -> Sighting | None:
    recent = grad_norm.window(RECENT)
    value = grad_norm.last
    before = grad_norm.window(BASELINE, before=RECENT)
    if len(before) < BASELINE // 2 or not math.isfinite(value) or not value > max(finite(before[::16]), default=0.0):
        return None
    earlier, held = sorted(finite(before)), sorted(finite(recent))
    if len(held) < RECENT or len(earlier) < BASELINE // 2:
        return None
    usual = earlier[int(0.9 * len(earlier))]
    begin = max(beginning(grad_norm), default=0.0)
    if not held[RECENT // 4] > max(RISE * usual, begin):
        return None
    times = f"{value / usual:.2g} times what 9 in 10 were before" if usual else "zero before"
    return Sighting(
        step=grad_norm.last_step,
        text=f"gradient norm {value:.4g}, for {RECENT} steps {times}",
        confirm="one batch alone, after zero_grad: its norm is as large only if the weights or the data changed",
        numbers={"grad_norm": value, "usual": usual},
    )

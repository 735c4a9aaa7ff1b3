"""The updates are several times as large as before, at the same rate and with the same gradients.

## What it means

The state of the optimizer was lost or replaced (a resume without it: Adam's first steps are as large as the rate,
whatever the gradient), weight decay or momentum changed, or moments no longer fit the gradients.

## How it is seen

The norm of the update over the norm of the weights, sampled: more than three times the largest of the 16 samples
before, both for ratio / rate (that of Adam) and for ratio / (rate x gradient norm) (that of SGD). Adam's ratio hardly
varies; that of SGD varies with the gradient, which is divided out. And more than the samples before vary among
themselves: a tensor that goes to zero has a ratio without bound.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series

BEFORE, KNOWN = 16, 8
JUMP = 3.0


def see(update_ratio: Series, lr: Series, grad_norm: Series) -> Sighting | None:
    rows = [(ratio, lr.at(step), grad_norm.at(step)) for step, ratio in update_ratio.tail(BEFORE + 1)]
    known = [row for row in rows if all(0 < value < math.inf for value in row)]
    if len(known) <= KNOWN or known[-1] != rows[-1]:
        return None
    *earlier, (ratio, rate, norm) = known
    before = [e / r for e, r, _ in earlier]
    by_rate = ratio / rate / max(before)
    by_gradient = ratio / rate / norm / max(e / r / n for e, r, n in earlier)
    if min(by_rate, by_gradient) < JUMP or by_rate < max(before) / min(before):
        return None
    return Sighting(
        step=update_ratio.last_step,
        text=f"the update is {ratio:.2g} of the weights, {by_rate:.2g} times the largest before at the same rate",
        confirm="whether the state of the optimizer, its weight decay or its betas changed since",
        numbers={"update_ratio": ratio, "times": by_rate},
    )

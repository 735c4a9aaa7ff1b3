"""The loss of evaluation is NaN or infinite while that of training is finite.

## What it means

Evaluation computes something that training does not: a batch without a target, another dtype, longer or padded rows.

## How it is seen

In a log: an evaluation loss that is not finite, in a run whose training loss is.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series


def review(eval_loss: Series) -> Sighting | None:
    bad = next(((step, value) for step, value in eval_loss.pairs() if not math.isfinite(value)), None)
    if bad is None:
        return None
    step, value = bad
    text = f"the loss of evaluation is {value} at step {step}, that of training is finite"
    return Sighting(step=step, text=text, numbers={"eval_loss": value})

"""The step was taken with gradients that still held those of the step before.

## What it means

zero_grad is not called, or on another optimizer, or after the backward. Every update is made of the sum of all
gradients so far. Under Adam the loss may not show it for a long time.

## How it is seen

Of the tensors of the optimizer, those whose gradient was there and not zero at the beginning of every backward since
its step before: more than none. Micro-batches of one step add up and begin at zero; of two optimizers that share a
backward each is zeroed before its own.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series


def see(kept_gradients: Series) -> Sighting | None:
    share = kept_gradients.last
    if not share > 0:
        return None
    return Sighting(
        step=kept_gradients.last_step,
        text=f"{share:.0%} of the gradients were not zeroed since the step before",
        confirm="where zero_grad is called, and of which optimizer",
        numbers={"kept_gradients": share},
    )

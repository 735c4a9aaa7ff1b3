"""The gradient norm of a step is NaN or infinite although the loss may look well.

## What it means

The backward overflowed or met a value that the forward could hide: a padding position, an operator whose derivative is
infinite, a row so short that its gradient exceeds the dtype.

## How it is seen

The norm of the gradient before clipping is NaN or infinite at the newest step. A note where the update was skipped and
the loss is scaled by more than 1: a scaler finds its scale by overflows, and loss-scale-collapse says when it does
not.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series


def see(
    grad_norm: Series, loss: Series | None = None, loss_scale: Series | None = None, skipped: Series | None = None
) -> Sighting | None:
    if math.isfinite(grad_norm.last):
        return None
    step = grad_norm.last_step
    scaled = loss_scale is not None and loss_scale.at(step) > 1
    discarded = skipped is not None and bool(skipped.at(step))
    lost = loss is not None and loss.last_step == step and not math.isfinite(loss.last)
    return Sighting(
        step=step,
        text=f"gradient norm is {grad_norm.last}",
        level="note" if scaled and discarded and not lost else "incident",
        numbers={"grad_norm": grad_norm.last},
    )

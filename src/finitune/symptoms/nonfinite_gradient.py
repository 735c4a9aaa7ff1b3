"""The gradient norm of a step is NaN or infinite although the loss may look well.

## What it means

The backward overflowed or met a value that the forward could hide: a padding position, an operator whose
derivative is infinite, a row so short that its gradient exceeds the dtype.

## How it is seen

The norm of the gradient before clipping is NaN or infinite at the newest step.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series


def see(grad_norm: Series) -> Sighting | None:
    if math.isfinite(grad_norm.last):
        return None
    text = f"gradient norm is {grad_norm.last}"
    return Sighting(step=grad_norm.last_step, text=text, numbers={"grad_norm": grad_norm.last})

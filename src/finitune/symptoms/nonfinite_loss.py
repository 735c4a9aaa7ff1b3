"""The loss of a step is NaN or infinite.

## What it means

A forward value left the range of its dtype, a division had nothing to divide by, or the weights or inputs were
already non-finite. A loss scale cannot help: it acts after the forward.

## How it is seen

The raw loss of the newest step is NaN, +inf or -inf. What a trainer prints may differ: some print 0.0 instead.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series


def see(loss: Series) -> Sighting | None:
    if math.isfinite(loss.last):
        return None
    text = f"loss is {loss.last}"
    return Sighting(step=loss.last_step, text=text, level="incident", numbers={"loss": loss.last})

"""The optimizer made non-finite weights or moments of finite gradients.

## What it means

The arithmetic of the update left the range of the dtype in which weights and moments are kept: in float16 an eps of
1e-8 is zero, so Adam divides by zero, and squares of gradients above 255 overflow.

## How it is seen

Where weights are trained in float16, they are read again after the step; the step is then taken back.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series


def see(bad_update: Series, skipped: Series) -> Sighting | None:
    if bad_update.last_step != skipped.last_step or not bad_update.last:
        return None
    return Sighting(
        step=bad_update.last_step, text="the update is not finite", level="incident", numbers={"bad_update": 1.0}
    )

"""Finite gradients that are not the average of what the ranks computed.

## What it means

Every number looks healthy, and every update goes in a wrong direction: a bucket was overwritten while it was sent,
tensors were left out of the reduction, or ranks averaged different things.

## How it is seen

In some steps a few gradients are averaged over ranks once more, by one blocking all-reduce of what each rank computed.
What the optimizer would use is more than 2 % away from that, whatever the common factor: bfloat16 rounds by 0.4 %.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

OFF = 0.02


def see(reduction_error: Series, skipped: Series) -> Sighting | None:
    if reduction_error.last_step != skipped.last_step or not reduction_error.last > OFF:
        return None
    return Sighting(
        step=reduction_error.last_step,
        text=f"gradients are {reduction_error.last:.0%} away from the average over ranks",
        level="incident",
        numbers={"reduction_error": reduction_error.last},
    )

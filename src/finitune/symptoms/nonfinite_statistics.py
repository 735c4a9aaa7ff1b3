"""Running statistics of a batch norm are NaN or infinite while the loss is finite.

## What it means

A forward in training mode has averaged a batch that was not finite, or that overflowed, whether its step was made or
skipped. The norm computes with the batch while it trains, so the loss shows nothing; in evaluation it computes with
these statistics, and every output is NaN or constant. An average that holds a NaN once holds it for ever.

## How it is seen

The running mean and variance of every batch norm that trains, read with each step. The guard puts back those of the
last finite step; where it may not, or has none, this is a suspicion.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series


def see(lost_statistics: Series) -> Sighting | None:
    if not lost_statistics.last >= 1:
        return None
    count = lost_statistics.last
    norms = "1 batch norm" if count == 1 else f"{count:.0f} batch norms"
    return Sighting(
        step=lost_statistics.last_step,
        text=f"the running statistics of {norms} are not finite; evaluation computes with them",
        level="suspicion",
        confirm="the same input in evaluation mode; the first batch whose values are not finite or very large",
        numbers={"lost_statistics": count},
    )

"""The learning rate is zero, and training goes on.

## What it means

The schedule has ended before the run: it was made for fewer steps, counts micro-batches, or is stepped once per rank.
Every further step is wasted.

## How it is seen

Exactly zero in each of the last 32 steps, after steps in which it was not. Schedules reach zero at their last step.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW = 32


def see(lr: Series) -> Sighting | None:
    if lr.last != 0 or len(lr) <= IN_A_ROW or any(lr.window(IN_A_ROW)) or not any(lr.window(512)):
        return None
    return Sighting(
        step=lr.last_step,
        text=f"the learning rate is 0 for {IN_A_ROW} steps",
        confirm="the number of steps that the schedule was made for, beside that of the run",
        numbers={"lr": 0.0},
    )

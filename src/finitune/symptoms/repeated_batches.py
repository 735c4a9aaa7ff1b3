"""The same batch comes again and again, after a time in which batches were different.

## What it means

A sampler that is seeded anew in every step, an iterator made again inside the loop, a loader that gives the last batch
at its end. The loss falls fast, and nothing is learned but this batch.

## How it is seen

The batch equals the one before in each of the last 16 steps, four times as long as ever before, and in at least 32 of
the steps before it did not. Several epochs over one batch, as PPO makes them, come in short rows; a run that has one
batch only is a test of its own.
"""

from __future__ import annotations

from itertools import groupby

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW, LONGER, DIFFERENT = 16, 4, 32
WINDOW = 512


def see(repeated_batch: Series) -> Sighting | None:
    if not repeated_batch.last or not all(repeated_batch.window(IN_A_ROW)):
        return None
    rows = [(bool(value), len(list(same))) for value, same in groupby(repeated_batch.window(WINDOW))]
    length = rows[-1][1]
    longest = max((size for repeated, size in rows[:-1] if repeated), default=0)
    different = sum(size for repeated, size in rows if not repeated)
    if length < max(IN_A_ROW, LONGER * longest) or different < DIFFERENT:
        return None
    return Sighting(
        step=repeated_batch.last_step,
        text=f"the batch is the same for {length + 1} steps; before it changed",
        confirm="the ids of a few batches in a row",
        numbers={"steps": float(length + 1)},
    )

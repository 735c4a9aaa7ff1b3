"""A batch has no label that the loss is computed on.

## What it means

All labels are ignored: a template that does not match, prompts that were cut off before their answer, padding only. A
mean over none is NaN; a sum over none is 0, and the step teaches nothing.

## How it is seen

Labels other than the ignored one, counted: none in one sample is a note, for a batch may be cut off, none in 2 samples
in a row a suspicion.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW = 2


def see(targets: Series) -> Sighting | None:
    if targets.last != 0:
        return None
    recent = targets.window(IN_A_ROW)
    return Sighting(
        step=targets.last_step,
        text="no label of the batch is counted by the loss",
        level="suspicion" if len(recent) == IN_A_ROW and not any(recent) else "note",
        confirm="the labels of a batch, decoded",
        numbers={"targets": 0.0},
    )

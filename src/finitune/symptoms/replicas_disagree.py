"""Ranks that should hold the same weights hold different ones.

## What it means

Every rank trains a model of its own: an update was skipped or taken on one rank only, a tensor is not reduced, or
memory was damaged. The loss looks healthy for days (BLOOM: ten days), and what is saved is the model of one rank.

## How it is seen

The relative distance between the weights, above 10^-6: a suspicion, and an incident where it is so in two samples in a
row after the ranks agreed in an earlier one. Equal gradients make equal updates bit for bit; ranks that never agreed
may be meant to differ.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

APART = 1e-6
IN_A_ROW, WINDOW = 2, 512


def see(replica_error: Series) -> Sighting | None:
    if not replica_error.last > APART:
        return None
    before = replica_error.window(WINDOW)
    recent = before[-IN_A_ROW:]
    agreed = any(error <= APART for error in before[:-IN_A_ROW])
    certain = agreed and len(recent) == IN_A_ROW and all(error > APART for error in recent)
    return Sighting(
        step=replica_error.last_step,
        text=f"the weights of the ranks differ by {replica_error.last:.2g} of their norm",
        level="incident" if certain else "suspicion",
        confirm="the same in the next sample, and which tensors differ",
        numbers={"replica_error": replica_error.last},
    )

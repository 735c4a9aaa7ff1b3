"""Checkpointed segments are run that no gradient enters, and trained tensors get none.

## What it means

Reentrant checkpointing records a segment only where something that it is given requires a gradient. What is trained
within such a segment stays as it was; PyTorch warns of it once.

## How it is seen

Segments with trained parameters, run with gradients on, of whose inputs none requires one; in the same step tensors of
the optimizer have no gradient, or one of zero.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series


def see(cut_off_segments: Series, zero_gradients: Series) -> Sighting | None:
    share = zero_gradients.last
    if not cut_off_segments.last > 0 or not share > 0 or zero_gradients.last_step != cut_off_segments.last_step:
        return None
    given = f"{cut_off_segments.last:.0f} checkpointed segments were given nothing that requires one"
    return Sighting(
        step=zero_gradients.last_step,
        text=f"{share:.0%} of the tensors have no gradient; {given}",
        confirm="use_reentrant=False: these tensors have gradients",
        numbers={"zero_gradients": share, "cut_off_segments": cut_off_segments.last},
    )

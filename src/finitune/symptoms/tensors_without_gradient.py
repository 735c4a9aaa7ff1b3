"""A part of the trained tensors gets no gradient any more.

## What it means

A layer is detached or dead: its output is zero or not used, a branch is cut off, gradients underflow, or tensors were
frozen and left in the optimizer.

## How it is seen

The share of trained tensors whose gradient is exactly zero or absent, above the largest of the 128 steps before in
each of the last 8. Experts, heads of several tasks and unused rows come and go, and are within what was there before.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW, BEFORE, KNOWN = 8, 128, 32


def see(zero_gradients: Series) -> Sighting | None:
    if not 0 < zero_gradients.last < 1:
        return None
    recent = zero_gradients.window(IN_A_ROW)
    before = zero_gradients.window(BEFORE, before=IN_A_ROW)
    if len(before) < KNOWN or not min(recent) > max(before):
        return None
    return Sighting(
        step=zero_gradients.last_step,
        text=f"{zero_gradients.last:.0%} of the tensors have no gradient in {IN_A_ROW} steps, {max(before):.0%} before",
        confirm="the names of these tensors, and whether they were frozen on purpose",
        numbers={"zero_gradients": zero_gradients.last, "before": max(before)},
    )

"""A part of the trained tensors gets no gradient any more.

## What it means

A layer is detached or dead: its output is zero or not used, a branch is cut off, gradients underflow, or tensors were
frozen and left in the optimizer.

## How it is seen

The share of the optimizer's tensors whose gradient is exactly zero or absent: in each of the last 8 steps above the
largest of the 128 before, or in the last 2 where it was one and the same in all 256 before, and never as large in the
run (a batch without pictures once in a hundred steps comes twice in a row and after none in 256 less than once in
100,000). Experts, dropped layers, heads of several tasks, unused rows, and policies whose samples are all clipped come
and go, and are within what was there before. Tensors that never had a gradient, as those of another optimizer, begin
another share.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

KNOWN = 32
LONG, BEFORE = 8, 128
SHORT, CONSTANT = 2, 256


def see(zero_gradients: Series, trained_tensors: Series | None = None) -> Sighting | None:
    if trained_tensors:
        zero_gradients = zero_gradients.since(trained_tensors.last_step - 1)
    share = zero_gradients.last
    if not 0 < share < 1:
        return None
    for steps, size in ((SHORT, CONSTANT), (LONG, BEFORE)):
        before = zero_gradients.window(size, before=steps)
        if len(before) < KNOWN or not min(zero_gradients.window(steps)) > max(before):
            continue
        constant = len(before) == CONSTANT and min(before) == max(before)
        if steps == LONG or (constant and max(before) == max(zero_gradients.window(len(zero_gradients), before=steps))):
            return Sighting(
                step=zero_gradients.last_step,
                text=f"{share:.0%} of the tensors have no gradient for {steps} steps, {max(before):.0%} before",
                confirm="the names of these tensors, and whether they were frozen on purpose",
                numbers={"zero_gradients": share, "before": max(before)},
            )
    return None

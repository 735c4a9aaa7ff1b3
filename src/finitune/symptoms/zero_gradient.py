"""All gradients are exactly zero in several steps, and the loss is not.

## What it means

Nothing can be learned: the loss does not depend on the trained weights any more (detached, clamped, taken from another
model), gradients underflow in float16, or an output is so far off that its derivative is zero.

## How it is seen

The gradient norm is exactly zero in 8 steps in a row, at losses that are not zero. One such step occurs in healthy
reinforcement learning: a batch whose ratios are all clipped.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW = 8


def see(grad_norm: Series, loss: Series) -> Sighting | None:
    if grad_norm.last != 0:
        return None
    norms, losses = grad_norm.window(IN_A_ROW), loss.window(IN_A_ROW)
    if len(norms) < IN_A_ROW or any(norms) or len(losses) < IN_A_ROW or not all(losses):
        return None
    return Sighting(
        step=grad_norm.last_step,
        text=f"all gradients are exactly 0 for {IN_A_ROW} steps at a loss of {loss.last:.4g}",
        confirm="whether the loss changes when a trained weight is changed by hand",
        numbers={"loss": loss.last},
    )

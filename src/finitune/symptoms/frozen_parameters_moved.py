"""A step of the optimizer changed tensors that are frozen.

## What it means

A frozen tensor is held by an optimizer and has a gradient of zero or an old one: weight decay and momentum move it.
What was meant to stay, the base of an adapter or a reference model, drifts.

## How it is seen

Tensors that do not require a gradient, compared before and after the step of the optimizer: a suspicion where one
changed, an incident where this is so in two samples in a row. Averages of weights and target networks are written
outside the step.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW = 2


def see(frozen_moved: Series) -> Sighting | None:
    if not frozen_moved.last >= 1:
        return None
    recent = frozen_moved.window(IN_A_ROW)
    again = len(recent) == IN_A_ROW and min(recent) >= 1
    return Sighting(
        step=frozen_moved.last_step,
        text=f"the step of the optimizer changed {frozen_moved.last:.0f} frozen tensors",
        level="incident" if again else "suspicion",
        confirm="the same in the next sample; which parameter group holds them",
        numbers={"frozen_moved": frozen_moved.last},
    )

"""Let the loss scale find its own height.

## What it changes

The loss scale starts at 2**16, is halved on overflow and doubled after a run of finite steps. A few of the first steps
are skipped while it settles; that is normal.

## When it is safe

Always. If the scale falls to 1 all the same, scaling was not the problem: the forward overflows, or weights are
damaged.

## References

PKU-Alignment/safe-rlhf#21, NVIDIA, Train with Mixed Precision.
"""

from __future__ import annotations

from finitune.facts import DEFAULT_SCALE_POWER, Precision
from finitune.finding import Remedy

safety = "safe"


def propose(precision: Precision | None = None) -> Remedy | None:
    if precision is None or precision.compute != "float16":
        return None
    return Remedy(
        patch={"fp16.loss_scale": 0, "fp16.initial_scale_power": DEFAULT_SCALE_POWER, "fp16.min_loss_scale": 1},
    )

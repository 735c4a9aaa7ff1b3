"""Give Adam an eps that its state can hold.

## What it changes

One setting, to 1e-5. Coordinates whose gradient is below 1e-5 move less than they would.

## When it is safe

It is a stop-gap for weights that must stay in float16: it removes the division by zero and leaves the coarse update.
The cure is to hold trained weights and state in float32, where 1e-8 is right.

## References

NVIDIA/apex#240, google-deepmind/optax#1754.
"""

from __future__ import annotations

from finitune.facts import Optimizer
from finitune.finding import Remedy

safety = "unsafe"

HELD_BY_FLOAT16 = 1e-5


def propose(optimizer: Optimizer | None = None) -> Remedy | None:
    if optimizer is not None and (optimizer.eps or 0.0) >= HELD_BY_FLOAT16:
        return None
    return Remedy(patch={"adam_epsilon": HELD_BY_FLOAT16})

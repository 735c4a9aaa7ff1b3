"""Clip the global norm of the gradients.

## What it changes

One setting. A step whose gradient norm is above 1.0 is scaled down to it, direction kept; others are untouched.

## When it is safe

Nearly always: 1.0 is the default of the common trainers. It tames finite spikes. It cannot repair a gradient that is
NaN (the clipped one is NaN too), and it does not cure a learning rate that is too high.

## References

lucidrains/denoising-diffusion-pytorch#102; Pascanu et al., On the difficulty of training recurrent neural networks
(2013).
"""

from __future__ import annotations

from finitune.facts import Optimizer
from finitune.finding import Remedy

safety = "unsafe"

USUAL = 1.0


def propose(optimizer: Optimizer | None = None) -> Remedy | None:
    if optimizer is not None and optimizer.clip:
        return None
    return Remedy(patch={"max_grad_norm": USUAL})

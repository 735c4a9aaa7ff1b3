"""Lower the learning rate to the range of recipes that are known to converge.

## What it changes

One setting. With Adam for all weights 2e-5, for LoRA 2e-4, and never more than a tenth of the present rate; with other
optimizers a tenth of it, and with SGD 0.1 where a tenth would still be beyond any recipe.

## When it is safe

It changes what is learned in a given number of steps, so look at the loss curve. It cures a divergence; it does not
cure a NaN in the first steps, which arises in the forward or backward pass and has nothing to do with the rate.

## References

ssbuild/chatglm_finetuning#28, haotian-liu/LLaVA#918; for SGD Goyal et al. 2017 (0.1 for 256 samples).
"""

from __future__ import annotations

from finitune.facts import Optimizer
from finitune.finding import Remedy
from finitune.rates import ADAM, SGD, SGD_LENGTH, TINY
from finitune.series import Series

safety = "unsafe"

FULL = 2e-5
LORA = 2e-4
OF_SGD = 0.1
RAISED = 2.0
"""Times the rate of the first step: the schedule has done it, and the setting alone says little."""
HIGHEST = 1.0
"""Above it stands no recipe but those of SGD; optimizers that find their rate themselves have 1."""


def propose(optimizer: Optimizer, lr: Series | None = None) -> Remedy | None:
    if optimizer.lr is None or optimizer.lr <= TINY:
        return None
    reached = lr.last if lr else optimizer.lr
    if reached > RAISED * optimizer.lr:
        low = reached / 10
        return Remedy(
            text=f"let the schedule end its rise below {low:.3g}: from {optimizer.lr:g} it has come to {reached:.3g}"
        )
    name, lower = (optimizer.name or "adamw").lower(), optimizer.lr / 10
    if ADAM.match(name):  # the recipes are Adam's
        lower = min(LORA if optimizer.lora else FULL, lower)
    elif name in SGD and lower > SGD_LENGTH / (optimizer.clip or 1.0):
        lower = OF_SGD
    elif name not in SGD and lower > HIGHEST:
        return Remedy(text=f"take the rate of a published recipe for {optimizer.name} (it is {optimizer.lr:g})")
    return Remedy(patch={"learning_rate": float(f"{lower:.3g}")}, text=f"it is {optimizer.lr:g}")  # as people write it

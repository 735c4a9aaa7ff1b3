"""Lower the learning rate to the range of recipes that are known to converge.

## What it changes

One setting. With Adam for all weights 2e-5, for LoRA 2e-4, and never more than a tenth of the present rate; with other
optimizers a tenth of it.

## When it is safe

It changes what is learned in a given number of steps, so look at the loss curve. It cures a divergence; it does not
cure a NaN in the first steps, which arises in the forward or backward pass and has nothing to do with the rate.

What is not done to a running run: rescaling the update by its size (StableAdamW), z-loss, smaller updates of the
embedding. They change what every later step optimizes, and on a captured step nothing tells them from a lower rate, so
that they could not be proved; they belong into the recipe of the next run.

## References

ssbuild/chatglm_finetuning#28, haotian-liu/LLaVA#918.
"""

from __future__ import annotations

from finitune.facts import Optimizer
from finitune.finding import Remedy
from finitune.rates import ADAM

safety = "unsafe"

FULL = 2e-5
LORA = 2e-4


def propose(optimizer: Optimizer) -> Remedy | None:
    if optimizer.lr is None:
        return None
    adam = ADAM.match((optimizer.name or "adamw").lower())  # the recipes are Adam's
    usual = (LORA if optimizer.lora else FULL) if adam else optimizer.lr
    lower = float(f"{min(usual, optimizer.lr / 10):.3g}")  # as people write it
    return Remedy(patch={"learning_rate": lower}, text=f"it is {optimizer.lr:g}")

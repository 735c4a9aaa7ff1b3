"""The adapter's scale is so large, or so small, that its updates overshoot or never arrive.

## What happens

The output of an adapter is multiplied by alpha over rank (over its square root when rank-stabilised). Alpha is often
copied from a recipe of another rank: 256 over 8 multiplies every step by 32. The loss climbs and in float16 ends in
NaN. With alpha 0 nothing is learned at all. Related: B not zero at the start changes the model before the first step,
A and B both zero have no gradient.

## How to tell

Learning rate times scale against that of recipes: 1e-4 to 5e-4 times 1 to 2. The first loss is that of the base model;
where it is not, the initialisation is wrong.

## How to prove

Take the captured step with a hundredth of the rate: the loss does not rise.

## What to do

Set alpha to one or two times the rank (lower-adapter-scale), or lower the learning rate in proportion.

## What does not help

Clipping: Adam's step does not depend on the size of the gradient. Freezing whatever went NaN.

## References

bmaltais/kohya_ss#1758 (alpha above 1 with its rank and rate), ml-explore/mlx-examples#620 (loss 1.4 to 6.4, then NaN);
Hu et al., LoRA (2021); Kalajdzievski, Rank stabilization (2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Adapter, Optimizer
from finitune.finding import Evidence, Finding, Where
from finitune.series import CLIMBED, Series, climb

LARGE = 1e-2
"""Learning rate times scale: 5e-3, a confirmed failure (ssbuild/chatglm_finetuning#28), at the usual scale 2."""
RUINOUS = 1e-1
"""A product that leaves no doubt: a rate of 5e-2 at the usual scale."""
RATE_ALONE = 5e-3
"""From here on the rate is too high whatever the scale, which is another chapter."""

experiments = [Experiment(arm="update-times=0.01", expect="finite", optional=True)]
remedies = ["lower-adapter-scale"]
public_incidents = 6
foresees = "adapter scale"

tells: Tells = {
    "adapter-scale": (STRONG, "alpha over rank multiplies every update"),
    "adapter": (HINT, "an adapter has a scale"),
    "climbed": (HINT, "updates that are multiplied too much diverge"),
    "divergence": (HINT, "updates that are multiplied too much diverge"),
    "does-not-learn": (HINT, "with a factor of 0 nothing is learned"),
    "loss-repeats": (HINT, "with a factor of 0 nothing is learned"),
    "zero-loss-zero-gradient": (-STRONG, "no scale makes a gradient exactly 0"),
    "from-the-start": (-STRONG, "nothing had been updated yet"),
    "tiny-learning-rate": (-DECISIVE, "at such a rate nothing moves"),
    "loss-scale-collapse": (-STRONG, "it does not depend on the loss scale"),
    "nonfinite-evaluation": (-DECISIVE, "training would be ruined too"),
    "loss-jumped": (HINT, "an update ruined the model"),
    "first-step-lost": (-STRONG, "a new adapter changes nothing before its first update"),
}


def foresee(optimizer: Optimizer, adapter: Adapter) -> Iterator[Finding]:
    scale = scale_of(adapter)
    if scale is None:
        return
    evidence = {"alpha": adapter.alpha, "rank": adapter.rank, "scale": scale, "lr": optimizer.lr}
    if scale == 0:
        yield Finding(
            severity="error",
            message="alpha is 0, so the adapter adds nothing and learns nothing",
            where=Where(file=adapter.source, key="lora_alpha"),
            evidence=evidence,
        )
    elif optimizer.lr is not None and optimizer.lr < RATE_ALONE and optimizer.lr * scale >= LARGE:
        yield Finding(
            severity="error" if optimizer.lr * scale >= RUINOUS else "warning",
            message=f"the adapter's scale is {scale:g} (alpha {adapter.alpha:g}, rank {adapter.rank}), so learning "
            f"rate {optimizer.lr:g} acts like {optimizer.lr * scale:g}; recipes stay below {LARGE:g}",
            where=Where(file=adapter.source, key="lora_alpha"),
            evidence={**evidence, "lr_times_scale": optimizer.lr * scale, "warning_from": LARGE},
        )


def weigh(adapter: Adapter, optimizer: Optimizer, loss: Series) -> Iterator[Evidence]:
    scale = scale_of(adapter)
    if scale is None or optimizer.lr is None:
        return
    if scale == 0:
        yield evidence("adapter scale", DECISIVE, "alpha is 0, so the adapter adds nothing")
        return
    if optimizer.lr * scale < LARGE:
        if adapter.rank_stabilised is None and optimizer.lr * scale * math.sqrt(adapter.rank or 1) >= LARGE:
            return  # it would not be small with a scale of alpha / sqrt(rank)
        yield evidence("adapter scale", -DECISIVE, f"learning rate times the adapter's scale ({scale}) is usual")
        return
    size = DECISIVE if optimizer.lr * scale >= RUINOUS else STRONG
    yield evidence("adapter scale", size, f"learning rate times the adapter's scale is {optimizer.lr * scale:g}")
    times = climb(loss.values)
    if times is None and np.isfinite(loss.values).any():
        return
    climbed = times is not None and times > CLIMBED
    text = "the loss climbed first" if climbed else "the loss had not climbed"
    yield evidence("loss curve", STRONG if climbed else -DECISIVE, text)


def scale_of(adapter: Adapter) -> float | None:
    """What multiplies the output of the adapter; None where alpha or rank are not known."""
    if adapter.kind not in ("lora", "dora") or adapter.alpha is None or not adapter.rank:
        return None
    return adapter.alpha / (math.sqrt(adapter.rank) if adapter.rank_stabilised else adapter.rank)

"""The loss scale is finding its height: skipped steps at the start that are normal.

## What happens

A dynamic loss scale begins high on purpose and is halved at each overflow until the gradients fit; later it is raised
now and then, which costs a single skipped step. With the usual start of 2**16 a few steps are skipped, with 2**32
about sixteen more. Weights are untouched by a skipped step.

## How to tell

Lines of OVERFLOW that count down from 2**16 or 2**32 and then stop; the loss is finite and goes on falling; the scale
settles above 2**10. A scale that falls on to 1 is not this.

## How to prove

Run the captured step again with the loss not scaled: it is finite.

## What to do

Nothing. Where the lines disturb, begin at 2**16 (dynamic-loss-scale), or compute in bfloat16, which has no scaler.

## What does not help

Changing the card, the data or the learning rate: nothing is wrong. A static scale to be rid of the lines: it cannot
give way when it has to.

## References

PKU-Alignment/safe-rlhf#21 (2**32 on an A100), hiyouga/LLaMA-Factory#9462 (an occasional skipped step), PyTorch
documentation of GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import DEFAULT_LOSS_SCALE, Precision
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.series import Series

HIGH_START = 2.0**20
HEALTHY = 2.0**10
"""A scale that settles above it is no sign of trouble."""

remedies = ["dynamic-loss-scale", "use-bfloat16"]
public_incidents = 4
foresees = "loss scale"

tells: Tells = {
    **FLOAT16_ONLY,
    "overflow": (STRONG, "the loss scale is looking for its level"),
    "scale-at-minimum": (-DECISIVE, "the loss scale found no level"),
    "late": (HINT, "a skipped step now and then is how the scaler works"),
    "nonfinite-loss": (-STRONG, "the loss itself is lost"),
    "computes-float16": (HINT, "float16 has a loss scaler"),
    "loss-scale-collapse": (-DECISIVE, "the loss scale found no level"),
    "goes-on": (STRONG, "a scaler that found its level lets training go on"),
}


def foresee(precision: Precision) -> Iterator[Finding]:
    scale = precision.initial_scale or 0.0
    if precision.compute != "float16" or precision.scaler != "dynamic" or scale < HIGH_START:
        return
    skipped = round(math.log2(scale / DEFAULT_LOSS_SCALE)) + (precision.hysteresis or 1) - 1
    yield Finding(
        severity="info",
        message=f"the loss scale begins at {scale:g}: about {skipped} skipped steps come first, which is normal",
        where=Where(file=Where.said(precision.source).file, key="initial_scale_power"),
        evidence={"initial_scale": scale, "usual": DEFAULT_LOSS_SCALE, "skipped_steps": skipped},
    )


def weigh(loss_scale: Series, origin: Origin) -> Iterator[Evidence]:
    scales = loss_scale.values[np.isfinite(loss_scale.values)]
    if origin.phase != "backward" or not len(scales):
        yield evidence(
            "origin", -DECISIVE, f"the first bad value arises in the {origin.phase}, which no loss scale mends"
        )
    elif scales[-1] >= HEALTHY:
        yield evidence(
            "loss scale", STRONG, f"the forward is finite and the loss scale is {scales[-1]:g}, where it belongs"
        )
    else:
        yield evidence("loss scale", -DECISIVE, f"the loss scale has fallen to {scales[-1]:g}")

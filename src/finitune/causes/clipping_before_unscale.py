"""Gradients are clipped while they are still multiplied by the loss scale.

## What happens

`scaler.scale(loss).backward()` leaves gradients that are as many times too large as the loss scale says, 65536 at the
start. A clip at 1.0 before `scaler.unscale_(optimizer)` holds this product to 1, so that after the division the norm
is 1/65536. Plain SGD stands still. Adam divides the factor out again until it meets `eps`, and what the clip was for
does not happen: every step is cut to one length, which changes whenever the scale does.

## How to tell

In the loop `clip_grad_norm_` stands between `backward` and `scaler.unscale_`, or there is no `unscale_` at all. The
norm that it returns is thousands of times what it is without the scaler.

## How to prove

Print the norm of the gradients after `scaler.unscale_`: it never comes near the bound that was given.

## What to do

Call `scaler.unscale_(optimizer)` once, right before the clip.

## What does not help

A larger bound: it is right for one loss scale, and the scale changes. A second `unscale_` in the same step is an error.

## References

Lightning-AI/pytorch-lightning#9599 (a very flat loss until clipping came after unscaling), pytorch/examples#1196,
milesial/Pytorch-UNet#468, harubaru/waifu-diffusion#64, rwth-i6/returnn#1595; PyTorch, "Automatic Mixed Precision
examples", on gradient clipping.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, STRONG, Tells, evidence
from finitune.facts import Optimizer
from finitune.finding import Evidence, Finding, Remedy, Where

SMALLER = "a gradient that is clipped too far is smaller, and stays finite"

remedies = ["change-settings"]
public_incidents = 5
unseen = "whether gradients are unscaled before they are clipped"

tells: Tells = {
    "nonfinite-loss": (-STRONG, SMALLER),
    "nonfinite-gradient": (-STRONG, SMALLER),
    "divergence": (-STRONG, SMALLER),
    "does-not-learn": (STRONG, "every step is cut to a fraction of what it should be"),
}


def foresee(optimizer: Optimizer) -> Iterator[Finding]:
    if not optimizer.clips_scaled:
        return
    at = f" at {optimizer.clip:g}" if optimizer.clip else ""
    yield Finding(
        severity="warning",
        message=f"gradients are clipped{at} before scaler.unscale_, so what is clipped is the gradient times the loss "
        "scale",
        where=Where(file=optimizer.source, key="clips_scaled"),
        evidence={"clip": optimizer.clip},
        remedy=Remedy(text="call scaler.unscale_(optimizer) once, right before the gradients are clipped"),
    )


def weigh(optimizer: Optimizer, symptoms: set[str]) -> Iterator[Evidence]:
    if optimizer.clips_scaled is None:
        return
    if any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("clipping", -DECISIVE, SMALLER)
    elif optimizer.clips_scaled and "stagnation" in symptoms:
        yield evidence("clipping", STRONG, "gradients are clipped before they are unscaled")

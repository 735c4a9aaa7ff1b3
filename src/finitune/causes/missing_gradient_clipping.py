"""Gradient clipping is switched off, or bounds gradients that are still multiplied by the loss scale.

## What happens

A rare batch gives a gradient ten or a hundred times the usual. Clipped to a norm of 1 it is one step among others;
unclipped it fills the moments of Adam with large numbers, or in float16 pushes weights to where the next forward
overflows. The loss spikes and may not come back.

Between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)` gradients are too large by the loss
scale, 65536 at the start. A clip at 1.0 there leaves a norm of 1/65536 after the division: plain SGD stands still,
Adam takes every step at one length, and a spike is not bounded as it was meant.

## How to tell

`max_grad_norm` or `gradient_clipping` is 0. The gradient norm is finite and spikes before the loss does. In a loop of
one's own `clip_grad_norm_` comes before `scaler.unscale_`, or there is no `unscale_`.

## How to prove

Take the last steps again from weights that were kept, each tensor's gradient clipped to twice what it was: the loss
does not rise. Unclipped, it rises again. Where updates have come to nothing since: with the moments forgotten the next
one is of its usual size, with the first moment alone forgotten it is not.

## What to do

Clip at 1.0 (clip-gradients). With a GradScaler call `scaler.unscale_(optimizer)` once, right before the clip. Moments
that an outlier has filled are forgotten (reset-moments).

## What does not help

Clipping as a cure for NaN: the norm of a NaN gradient is NaN. A norm so small that every step is clipped, which is a
lower learning rate under another name.

## References

lucidrains/denoising-diffusion-pytorch#102 (clipping removed the NaN under float16), incident taxonomy (three public
incidents); Lightning-AI/pytorch-lightning#9599 (a very flat loss until clipping came after unscaling),
pytorch/examples#1196, milesial/Pytorch-UNet#468, harubaru/waifu-diffusion#64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Adapter, Optimizer, Precision
from finitune.finding import Evidence, Finding, Remedy, Severity, Where
from finitune.rates import ADAM, LIKE_LORA
from finitune.series import Series, climbs_evenly

SPIKE = 10.0
"""Gradient norm over its median: ordinary noise stays within a factor of two or three."""
FILLS = 300.0
"""The same where it leaves (1 - 0.999) times its square, 100 times the usual, in the second moment of Adam."""
WINDOW = 3
TINY = 1e-30
HIGH_FULL, HIGH = 1e-4, 1e-3
"""Learning rates above those of recipes that leave clipping out, for all weights and for adapters."""

experiments = [
    Experiment(arm="last-steps-clipped", expect="finite", optional=True),
    Experiment(arm="last-steps=1", expect="non-finite", placebo=True, optional=True),
    Experiment(arm="fresh-moments", expect="finite", symptom="dead-update"),
    Experiment(arm="fresh-first-moment", expect="stuck", placebo=True, symptom="dead-update"),
]
remedies = ["rollback-and-skip", "clip-gradients", "reset-moments", "change-settings"]
public_incidents = 3
foresees = "not clipped"

tells: Tells = {
    "not-clipped": (STRONG, "nothing bounds a large gradient"),
    "gradients-big": (STRONG, "large and finite gradients come first"),
    "tiny-learning-rate": (-STRONG, "at such a rate nothing moves"),
    "zero-loss-zero-gradient": (-STRONG, "a large step leaves a gradient"),
    "from-the-start": (-STRONG, "nothing had been updated yet"),
    "climbed": (STRONG, "a step of a large gradient makes the loss climb"),
    "divergence": (STRONG, "steps of large gradients make the loss climb"),
    "loss-scale-collapse": (-STRONG, "it does not depend on the loss scale"),
    "nonfinite-evaluation": (-DECISIVE, "training would be ruined too"),
    "loss-jumped": (HINT, "an update ruined the model"),
    "first-step-lost": (-STRONG, "nothing had been updated yet"),
}


def foresee(
    optimizer: Optimizer, precision: Precision | None = None, adapter: Adapter | None = None
) -> Iterator[Finding]:
    if optimizer.clips_scaled:
        yield _scaled(optimizer)
    if optimizer.clip is None or optimizer.clip > 0:
        return
    half = precision is not None and precision.compute == "float16"
    usual = adapter is None or adapter.kind in LIKE_LORA  # soft prompts and their like are trained at other rates
    high = usual and optimizer.lr is not None and optimizer.lr >= (HIGH_FULL if optimizer.lora is False else HIGH)
    # Off by choice: in float16 a spike has little room, at a high rate little time; elsewhere it is worth knowing.
    severity: Severity = "warning" if half or high else "info"
    room = ", and float16 leaves a spike little room" if half else ""
    room += f", at learning rate {optimizer.lr:g}" if high else ""
    yield Finding(
        severity=severity,
        message=f"gradient clipping is switched off (norm {optimizer.clip:g}){room}",
        where=Where(file=optimizer.source, key="max_grad_norm"),
        evidence={"clip": optimizer.clip, **({"compute": precision.compute} if precision else {})},
    )


def _scaled(optimizer: Optimizer) -> Finding:
    at = f" at {optimizer.clip:g}" if optimizer.clip else ""
    return Finding(
        severity="warning",
        message=f"gradients are clipped{at} before scaler.unscale_, so what is bounded is the gradient times the loss "
        "scale",
        where=Where(file=optimizer.source, key="clips_scaled"),
        evidence={"clip": optimizer.clip},
        remedy=Remedy(name="change-settings", text="call scaler.unscale_(optimizer) once, right before clipping"),
    )


def weigh(
    grad_norm: Series, optimizer: Optimizer | None = None, incident: Mapping[str, Any] | None = None,
    clip_factor: Series | None = None, symptoms: set[str] | None = None, loss: Series | None = None,
) -> Iterator[Evidence]:  # fmt: skip
    """Of a run that was watched, `clip_factor` tells; of others, their settings."""
    if "dead-update" in (symptoms or ()):
        yield from _filled(grad_norm, optimizer)
        return
    clip = optimizer.clip if optimizer else None
    watched = incident is not None and incident.get("optimizer") is not None
    if clip is None and not watched:
        return
    scaled_down = clip_factor is not None and bool((clip_factor.values < 1).any())  # HF Trainer clips at infinity
    if clip or scaled_down or (incident is not None and incident.get("clipped_by_value")):
        yield evidence("not clipped", -STRONG, f"gradients are clipped{f' at {clip:g}' if clip else ''}")
        return
    if incident and incident.get("step") and "nonfinite-loss" in (symptoms or ()):
        grad_norm = grad_norm.until(incident["step"] - 1)  # a bad loss comes before its gradient
    norms = grad_norm.values[np.isfinite(grad_norm.values)]
    spike = norms[-WINDOW:].max() / max(np.median(norms), TINY) if len(norms) > 2 * WINDOW else 0.0
    if spike > SPIKE and not climbs_evenly(norms.tolist()):
        yield evidence("not clipped", STRONG, "gradients are not clipped")
        again = loss is not None and norms[-1] > SPIKE * norms[-2] > SPIKE**2 * norms[-3]  # no single batch
        size = DECISIVE if spike > SPIKE**2 and not again else STRONG  # a hundredfold is no noise
        yield evidence("gradient norm", size, f"the gradient norm spiked to {norms[-WINDOW:].max():.3g} just before")
    else:
        had = "climbed for long, as fast as at its end" if spike > SPIKE else "not spiked"
        yield evidence("gradient norm", -STRONG, f"gradients are not clipped, but their norm had {had}")


def _filled(grad_norm: Series, optimizer: Optimizer | None) -> Iterator[Evidence]:
    """Updates have come to nothing: of Adam, after an outlier, because its second moment remembers that alone."""
    norms = np.where(np.isfinite(grad_norm.values), grad_norm.values, 0.0)
    times = norms.max() / max(float(np.median(norms)), TINY) if len(norms) else 0.0
    if optimizer is None or not ADAM.match((optimizer.name or "").lower()) or times < FILLS:
        yield evidence("gradient norm", -DECISIVE, "no gradient far beyond the others has filled the moments of Adam")
        return
    step = int(grad_norm.steps[norms.argmax()])
    yield evidence("gradient norm", DECISIVE, f"the gradient norm of step {step} was {times:.3g} times the median")
    yield evidence("update", STRONG, "updates have come to nothing since, at gradients of their usual size")

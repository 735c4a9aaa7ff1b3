"""The learning rate is too high for this update, so the loss climbs and ends in NaN.

## What happens

Each step overshoots what the curvature allows: the loss rises over several logged steps, gradients grow with it. The
rate that counts is the largest of all parameter groups and of the schedule; alpha over rank multiplies it.

## How to tell

The loss climbs first and the NaN comes later: a NaN in the first steps, while warm-up keeps the rate near zero, is
something else. The gradient norm climbs along. The mean loss goes above ln(vocabulary), worse than guessing. One
parameter group (text encoder, embeddings) has a rate a hundred times that of the rest.

## How to prove

From the weights before the climb the same steps with a tenth of the rate fall, and with the same rate climb again.

## What to do

Lower the rate to what the recipe of the model uses (lower-learning-rate): about 1e-5 to 5e-5 for full fine-tuning,
1e-4 to 5e-4 for LoRA. Warm up, clip at 1.0, use a larger batch.

## What does not help

Anything that treats NaN itself: another dtype only moves the step at which it happens. Clipping alone does not stop
a divergence of an adaptive optimizer, whose step size does not depend on the size of the gradient.

## References

ssbuild/chatglm_finetuning#28 (LoRA at 5e-3 fails, at 2e-5 converges), haotian-liu/LLaVA#918, kohya-ss/sd-scripts#201
(one group at 100 times the rate), zai-org/GLM-4#174, axolotl-ai-cloud/axolotl#1434, jumon/whisper-finetuning#13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, TRAINING_ONLY, Tells, evidence
from finitune.facts import Adapter, Optimizer, Training
from finitune.finding import Evidence, Finding, Origin, Remedy, Severity, Where
from finitune.rates import LARGE, REPLACED, USUAL, measured_update, risk_of
from finitune.series import CLIMBED, Series, climb, is_noise, peak

RUINED = 1e6
"""A loss of so many times its first, three steps in a row: squared errors of weights a thousand times their size."""

experiments = [
    Experiment(arm="update-times=0.01", expect="finite", optional=True),
    Experiment(arm="update-times=1", expect="non-finite", placebo=True, optional=True),
    Experiment(arm="last-steps=0.001", expect="finite", optional=True),
    Experiment(arm="last-steps=0.01", expect="finite", optional=True),
    Experiment(arm="last-steps=1", expect="non-finite", placebo=True, optional=True),
]
remedies = ["shrink-embedding-updates", "lower-learning-rate", "change-settings", "rescale-updates", "z-loss"]
public_incidents = 10
foresees = "learning rate"
tells: Tells = {
    **TRAINING_ONLY,
    "climbed": (STRONG, "too high a learning rate makes the loss climb first"),
    "divergence": (STRONG, "too high a learning rate makes the loss climb first"),
    "lower-learning-rate-fails": (-STRONG, "a lower learning rate fails too"),
    "learning-rates-differ": (STRONG, "one parameter group has a far higher rate"),
    "zero-loss-zero-gradient": (-STRONG, "too high a rate leaves a gradient"),
    "lower-learning-rate-works": (STRONG, "a lower learning rate is healthy"),
    "nonfinite-loss": (HINT, "a run that diverges ends in NaN"),
    "hidden-loss": (HINT, "a run that diverges ends in NaN, which is printed as 0"),
    "tiny-learning-rate": (-DECISIVE, "at such a rate nothing moves"),
    "sudden": (-STRONG, "the loss would have climbed before"),
    "second-step": (-HINT, "the rate had no time to act"),
    "from-the-start": (-HINT, "the rate had little time to act, unless a row stands for several steps"),
    "first-step-lost": (-STRONG, "the rate had no time to act"),
    "loss-jumped": (STRONG, "an update ruined the model"),
    "gradient-gone": (STRONG, "a ruined model may have no gradient left"),
    "loss-scale-collapse": (-STRONG, "it does not depend on the loss scale"),
    "nan-passes": (-STRONG, "a ruined model does not come back by itself"),
    "high-learning-rate": (STRONG, "Adam moves each weight by about the rate, and weights are about 0.02"),
    "usual-learning-rate": (-HINT, "recipes have such a rate, though a log prints that of one parameter group"),
    "nonfinite-evaluation": (-DECISIVE, "training would be ruined too"),
    "reinforcement": (-DECISIVE, "a loss of reinforcement learning has no level to climb from"),
}


def foresee(
    optimizer: Optimizer, adapter: Adapter | None = None, training: Training | None = None
) -> Iterator[Finding]:
    risk = risk_of(optimizer, adapter, training)
    if risk is None or optimizer.lr is None:
        return
    if not risk.at(optimizer.lr):
        yield from _unwarmed(optimizer, risk.unwarmed)
        return
    severity: Severity = "error" if optimizer.lr > risk.error else "warning"
    yield Finding(
        severity=severity,
        message=f"learning rate {optimizer.lr:g} with {optimizer.name or 'Adam'}; {risk.what} is at risk from "
        f"{risk.warning:g}",
        where=Where(file=optimizer.source, key="learning_rate"),
        evidence={
            "lr": optimizer.lr, "warning_from": risk.warning, "error_above": risk.error,
            **({} if optimizer.lora is None else {"lora": optimizer.lora}),
            **({} if optimizer.warmup_steps is None else {"warmup_steps": optimizer.warmup_steps}),
        },
    )  # fmt: skip


def _unwarmed(optimizer: Optimizer, wants: float | None) -> Iterator[Finding]:
    """A rate at which Adam's first steps, of full size before its moments mean anything, want a warm-up."""
    if wants and optimizer.warmup_steps == 0 and not optimizer.warmup_ratio and (optimizer.lr or 0.0) >= wants:
        yield Finding(
            severity="warning",
            message=f"learning rate {optimizer.lr:g} without warm-up; from {wants:g} on Adam wants one",
            where=Where(file=optimizer.source, key="warmup_steps"),
            evidence={"lr": optimizer.lr, "warmup_steps": 0, "wants_warmup_from": wants},
            remedy=Remedy(name="change-settings", patch={"warmup_ratio": 0.03}),
        )  # fmt: skip


def weigh(
    loss: Series,
    optimizer: Optimizer | None = None,
    grad_norm: Series | None = None,
    update_ratio: Series | None = None,
    first_update_ratio: Series | None = None,
    lr: Series | None = None,
    origin: Origin | None = None,
    incident: Mapping[str, Any] | None = None,
) -> Iterator[Evidence]:
    if origin is not None and origin.phase == "input":
        yield evidence("origin", -DECISIVE, "the batch itself is bad before anything is computed of it")
        return
    if incident and incident.get("step") == 1 and incident.get("last_good") == 0:
        yield evidence("learning rate", -DECISIVE, "no update had been taken yet")
        return
    measured = measured_update(lr, update_ratio, first_update_ratio)
    found = [finding.severity for finding in foresee(optimizer)] if optimizer and measured is None else []
    if incident and incident.get("symptom") == "nonfinite-gradient":
        loss = loss.until(incident["step"] - 1)  # that of the bad batch itself is no climb
    finite = np.isfinite(loss.values)
    losses = loss.values[finite]
    ratio = climb(losses)
    each = not (loss.steps[finite] > len(losses)).any()  # else a row may stand for several steps
    early = len(losses) < 2 and each
    if incident and (incident.get("symptom"), incident.get("grad_norm")) == ("divergence", 0):
        yield evidence("loss curve", STRONG, "the last updates left the model without any gradient")
    elif ratio is not None and ratio > CLIMBED:
        size = DECISIVE if ratio > CLIMBED**2 else STRONG  # noise may double a level, seldom twice
        if not is_noise(losses.tolist(), ratio, each=each):  # batches may differ as much
            yield evidence("loss curve", size, f"the loss had climbed to {ratio:.3g} times its level by then")
    elif each and (ruin := peak(losses.tolist())) > RUINED:
        yield evidence("loss curve", STRONG, f"the loss had been {ruin:.3g} times its first, and the weights with it")
    elif early and (measured or 0.0) > REPLACED:
        yield evidence("loss curve", STRONG, "one update of such a size is enough, without a climb")
    elif early or ratio is not None:
        text = "failed before the learning rate could act" if early else "had not climbed before it failed"
        yield evidence("loss curve", -DECISIVE, f"the loss {text}")
        if early and "error" in found:
            yield evidence("loss curve", DECISIVE, "one step at such a learning rate is enough, without a climb")
    norms = climb(grad_norm.values) if grad_norm is not None else None
    if norms is not None and norms > CLIMBED:
        yield evidence("gradient norm", HINT, f"the gradient norm climbed to {norms:.3g} times its level before")
    rate = optimizer.lr if optimizer is not None else None
    if measured is not None:
        size = -STRONG if measured < LARGE else STRONG if measured < REPLACED else DECISIVE
        yield evidence("learning rate", size, f"an update was measured as {measured:.2g} of the weights")
    elif rate is not None and found:
        size, beyond = (DECISIVE, "far beyond any recipe") if "error" in found else (STRONG, "beyond usual recipes")
        yield evidence("learning rate", size, f"the learning rate {rate:g} is {beyond}")
    elif rate is not None and rate < USUAL:
        yield evidence("learning rate", -STRONG, f"the learning rate {rate:g} is one of usual recipes")

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
(one group at 100 times the rate of the other), zai-org/GLM-4#174, axolotl-ai-cloud/axolotl#1434,
jumon/whisper-finetuning#13.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment
from finitune.facts import Adapter, Optimizer
from finitune.finding import Evidence, Finding, Remedy, Severity, Where
from finitune.rates import RUINOUS, USUAL, risk_of
from finitune.series import WORSE_THAN_CHANCE, Series, climb

RISEN = 1.5
"""Last finite loss over the lowest before it: training has undone what it learned."""

experiments = [
    Experiment(arm="update-times=0.01", expect="finite", optional=True),
    Experiment(arm="update-times=1", expect="non-finite", placebo=True, optional=True),
]
remedies = ["lower-learning-rate", "change-settings"]
public_incidents = 10
ruins = "high-rate"
tells = {
    "climbed diverged loss-rises": (4.0, "the loss climbs first"),
    "lower-rate-bad": (-3.0, "a lower rate does not"),
    "rates-differ": (3.0, "one is big"),
    "zero-loss-zero-gradient": (-4.0, "a gradient is left"),
    "lower-rate-sound": (3.0, "a lower rate cures"),
    "kernel-level serving": (-3.0, "no optimizer"),
    "loss-not-finite": (1.0, "how it ends"),
    "tiny-rate": (-6.0, "nothing moves"),
    "sudden": (-2.0, "it climbs first"),
    "second-step from-the-start first-step-lost first-loss-huge": (-2.0, "early"),
    "loss-jumped dead": (2.0, "ruined"),
    "scale-fell nan-passes": (-3.0, "another matter"),
    "high-rate": (4.0, "weights move by it"),
    "evaluation-only reinforcement": (-6.0, "no level to climb from"),
}


def foresee(optimizer: Optimizer, adapter: Adapter | None = None) -> Iterator[Finding]:
    risk = risk_of(optimizer, adapter)
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


def weigh(loss: Series, optimizer: Optimizer | None = None, grad_norm: Series | None = None) -> Iterator[Evidence]:
    finite = np.isfinite(loss.values)
    losses = loss.values[finite]
    if len(losses) < 2 and not (loss.steps[finite] > 1).any():  # a row may stand for several steps
        yield Evidence(text="it failed before the learning rate could have had an effect", bits=-5.0)
        yield from _at_once(optimizer)
        return
    ratio = climb(losses)
    if ratio is None:
        yield Evidence(text="the loss begins at zero or passes it, so no multiple of it tells a climb", bits=0.0)
    elif ratio > RISEN:
        text = f"the loss climbed to {ratio:.3g} times what it had been before it failed, lowest {losses.min():.4g}"
        yield Evidence(text=text, bits=6.0 if ratio > 4 else 3.0)
    elif losses.min() > WORSE_THAN_CHANCE:
        yield Evidence(text=f"the loss was worse than guessing in every row, {losses.min():.4g} or more", bits=3.0)
    else:
        yield Evidence(text=f"the loss had not climbed (last {losses[-1]:.4g}, lowest {losses.min():.4g})", bits=-5.0)
        yield from _at_once(optimizer)
    norms = grad_norm.values[np.isfinite(grad_norm.values)] if grad_norm is not None else losses[:0]
    if len(norms) >= 4 and norms[-3:].mean() > 5 * norms[: max(1, len(norms) // 2)].mean():
        yield Evidence(text=f"the gradient norm climbed too, to {norms[-1]:.3g}", bits=1.0)
    if optimizer is not None and any(foresee(optimizer)):
        bits = 8.0 if ratio is not None and (optimizer.lr or 0.0) >= RUINOUS else 3.0
        yield Evidence(text=f"the learning rate {optimizer.lr:g} is beyond usual recipes", bits=bits)
    elif optimizer is not None and optimizer.lr and optimizer.lr < USUAL:
        yield Evidence(text=f"the learning rate {optimizer.lr:g} is one of usual recipes", bits=-3.0)


def _at_once(optimizer: Optimizer | None) -> Iterator[Evidence]:
    """A rate that leaves no time to climb."""
    if optimizer is not None and any(finding.severity == "error" for finding in foresee(optimizer)):
        ruinous = (optimizer.lr or 0.0) >= RUINOUS
        yield Evidence(text=f"but one step at {optimizer.lr:g} is enough", bits=14.0 if ruinous else 4.0)

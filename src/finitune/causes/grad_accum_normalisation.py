"""The loss is normalised wrongly when gradients are accumulated.

## What happens

A mean over each micro-batch, averaged again, is not the mean over all tokens of the step, so transformers 4.46 began
to hand the number of tokens of the whole step to the loss. Several releases then divided neither by that number nor by
the number of micro-steps, for models and custom losses that do not take it: loss and gradients are too large by the
number of micro-steps. Clipping hides the size of the gradients, and the learning rate acts as if multiplied.

## How to tell

The ratio of the training loss to the evaluation loss, or to a run without accumulation, equals
`gradient_accumulation_steps`. transformers 4.46.0 to 4.48.2; up to 4.50 for models and trainers that compute their
loss themselves.

## How to prove

Train the same batch once with 1 micro-step and once with 2 of half the size: loss and gradient norm must agree.

## What to do

Install transformers 4.51 or later (upgrade-package), or train without accumulation.

## What does not help

Lowering the learning rate by the same factor: with clipping and Adam the two do not cancel.

## References

huggingface/transformers#34191 and #34263 (4.46), #35438 and #35207 (4.47, loss doubled with 2 micro-steps), #35651
(fixed in 4.48.3, see turbo-llm/turbo-alignment#70), hiyouga/LLaMA-Factory#7443 (4.49, a vision model, 138 against 6.4)
and #7743 (4.50).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Optimizer
from finitune.finding import Evidence, Finding, Where

ORDINARY = SpecifierSet(">=4.46.0,<4.48.3")
OWN_LOSS = SpecifierSet(">=4.48.3,<4.51")
"""Only for models and trainers that compute their loss themselves."""

remedies = ["upgrade-package"]
public_incidents = 4
foresees = "transformers release"

tells: Tells = {
    "accumulation-changes-loss": (STRONG, "the mean over micro-steps is taken wrongly"),
    "accumulates": (HINT, "the loss of several micro-steps is averaged"),
    "custom-trainer-loss": (STRONG, "a loss that is not given the count of targets divides wrongly"),
    "older-release-works": (HINT, "transformers 4.46 changed the normalisation"),
    "nonfinite-gradient": (-STRONG, "a wrong factor leaves every number finite"),
    "nonfinite-loss": (-STRONG, "a wrong factor leaves every number finite"),
    "loss-larger": (STRONG, "the loss is larger by a factor"),
}


def foresee(optimizer: Optimizer, versions: Mapping[str, str] | None = None) -> Iterator[Finding | Needs]:
    steps, version = optimizer.accumulation or 1, (versions or {}).get("transformers")
    if steps < 2:
        return
    if version is None:
        yield Needs("versions.transformers")
        return
    ordinary = ORDINARY.contains(version, prereleases=True)
    if not ordinary and not OWN_LOSS.contains(version, prereleases=True):
        return
    whose = "some models" if ordinary else "models that compute their own loss"
    yield Finding(
        severity="warning" if ordinary else "info",
        message=f"transformers {version} normalises the loss of {whose} wrongly over accumulation: up to {steps} times "
        f"too large with {steps} micro-steps",
        where=Where(file=optimizer.source, key="gradient_accumulation_steps"),
        evidence={
            "package": "transformers", "version": version, "affected": str(ORDINARY if ordinary else OWN_LOSS),
            "fixed_in": "4.51.0", "accumulation": steps,
        },
    )  # fmt: skip


def weigh(optimizer: Optimizer, versions: Mapping[str, str], symptoms: set[str]) -> Iterator[Evidence]:
    version, steps = versions.get("transformers"), optimizer.accumulation
    if steps is None or (steps > 1 and version is None):
        return
    if steps < 2 or version is None or not ORDINARY.contains(version, prereleases=True):
        yield evidence(
            "transformers release", -DECISIVE, f"{steps} micro-steps with transformers {version} are normalised rightly"
        )
        return
    yield evidence(
        "transformers release", STRONG, f"transformers {version} with {steps} micro-steps is on record for it"
    )
    if any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -DECISIVE, "but a loss that is too large is finite")

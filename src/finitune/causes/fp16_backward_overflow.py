"""Every forward value fits float16; the scaled gradients do not.

## What happens

The loss is multiplied by the loss scale before the backward pass, so that small gradients do not vanish. In models
whose gradients grow towards the first layers some exceed 65504: the step is skipped and the scale is halved. A dynamic
scale finds its height and all is well. A static scale, or a floor under the dynamic one, cannot: every step overflows.

## How to tell

The loss is finite and falling, the gradient norm NaN on most steps. Activations are far below 65504. Lines of
OVERFLOW that count down from 2**16 or 2**32 and then stop are normal; a scale that goes on to 1 is not a question of
scaling.

## How to prove

Run the captured step again with the loss not scaled: it becomes finite.

## What to do

Let the scale be dynamic and its floor 1 (dynamic-loss-scale), or compute in bfloat16 (use-bfloat16).

## What does not help

A larger static scale. Raising the floor so that the run does not stop: it then skips every step for ever. A forward
probe alone does not find it.

## References

hiyouga/LLaMA-Factory#2030 (a larger initial
scale only delays), incident taxonomy (four public incidents); measured in this project: an 8-layer model of Llama's
shape is finite up to 2**13 to 2**15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import Precision
from finitune.finding import Evidence, Finding, Origin, Where

HIGH_STATIC = 2.0**15
"""The most that a healthy model of 8 layers bore; deeper ones bear less, and a static scale cannot give way."""
HIGH_FLOOR = 2.0**10
"""A dynamic scale of a healthy run is at or above it, but not always: a floor there takes away the room."""
LARGEST = 65504.0
"""Of float16."""

experiments = [
    Experiment(arm="loss-scale-1", expect="finite"),
    Experiment(arm="again", expect="non-finite", placebo=True),
]
remedies = ["dynamic-loss-scale", "use-bfloat16"]
public_incidents = 4
foresees = "loss scale"

tells: Tells = {
    **FLOAT16_ONLY,
    "computes-float16": (STRONG, "gradients leave the range of float16 too"),
    "gradient-first": (STRONG, "the forward is finite, the backward is not"),
    "forward-lost": (-STRONG, "the forward is finite where only the backward overflows"),
    "finite-loss": (STRONG, "the forward is finite, the backward is not"),
    "float32-fails": (-STRONG, "float32 has the range, and fails too"),
    "from-the-start": (HINT, "no update is needed for it"),
    "late": (HINT, "gradients come near the limit now and then"),
    "float32-works": (HINT, "float32 has the range for such gradients"),
    "speaks-of-float16": (HINT, "gradients leave the range of float16"),
    "backward-only": (STRONG, "the forward is finite, the backward is not"),
    "float16-works": (-STRONG, "in float16 the model is healthy"),
    "activations-large": (-HINT, "the forward overflows already"),
    "nonfinite-loss": (-HINT, "the forward is finite where only the backward overflows"),
    "hidden-loss": (HINT, "a gradient that was not skipped made the weights NaN"),
    "updates-skipped": (STRONG, "the loss scaler skips these steps"),
    "updates-taken": (-HINT, "a loss scaler skips the step, and its schedule with it"),
    "loss-scale-collapse": (HINT, "a floor under the loss scale may be too high for the gradients"),
    "scale-at-minimum": (HINT, "a floor under the loss scale may be too high for the gradients"),
    "nonfinite-evaluation": (-DECISIVE, "evaluation has no backward"),
    "first-step-lost": (-STRONG, "the loss of the first step would be finite"),
    "loss-jumped": (-STRONG, "updates had ruined the model"),
}


def foresee(precision: Precision) -> Iterator[Finding]:
    scale, floor = precision.initial_scale or 0.0, precision.min_scale or 0.0
    if precision.compute != "float16":
        return
    if precision.scaler == "static" and scale >= HIGH_STATIC:
        yield _finding(precision, "loss_scale", f"a static loss scale of {scale:g} cannot give way")
    elif precision.scaler == "dynamic" and floor > HIGH_FLOOR:
        text = f"the loss scale may not fall below {floor:g}, so every step of a model that needs less is skipped"
        yield _finding(precision, "min_loss_scale", text)


def weigh(origin: Origin, incident: Mapping[str, Any] | None = None) -> Iterator[Evidence]:
    what, words = (incident or {}).get("scaler_spent") or ("", "")
    if what in ("scale", "floor"):
        yield evidence("loss scale", DECISIVE, f"the loss scale {words} and cannot give way")
    if origin.phase == "backward" and origin.dtype == "float16":
        yield evidence("origin", STRONG, f"the forward is finite; {origin.op} overflows float16 in the backward")
        if (origin.peak or 0.0) > LARGEST:
            yield evidence("peak", DECISIVE, f"{origin.peak:.3g} goes into {origin.op}; float16 ends at {LARGEST:g}")
    else:
        yield evidence("origin", -DECISIVE, f"the first bad value arises in the {origin.phase}, in {origin.dtype}")


def _finding(precision: Precision, key: str, text: str) -> Finding:
    return Finding(
        severity="warning",
        message=text,
        where=Where(file=Where.said(precision.source).file, key=key),
        evidence={
            "scaler": precision.scaler, "initial_scale": precision.initial_scale, "min_scale": precision.min_scale,
        },
    )  # fmt: skip

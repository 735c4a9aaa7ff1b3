"""Weights so small that the cast to float16 turns them to zero.

## What happens

Float16 ends at 6e-8 and loses digits below 6e-5. A layer whose weights were trained to be tiny (a small initial scale,
strong weight decay, a factor absorbed elsewhere) becomes zero, or a few multiples of 6e-8, when the model is loaded or
computed in float16. The forward is finite and wrong from the first step; in float32 and bfloat16 the same file is
healthy, because both reach down to 1e-38.

## How to tell

Count the elements of each matrix that are not zero and at most 3e-8, half of the smallest float16. A matrix of usual
size (rms 0.02) has one in a million. The loss of the first step is far above that of the published model, in float16
only. Rows of the embedding are another chapter (untrained-token-embeddings).

## How to prove

Run the captured step with the module that holds the matrix in float32: the loss of the first step falls to that of
the published model.

## What to do

Compute in bfloat16, which has the range (use-bfloat16), or keep the few modules in float32 (float32-modules).

## What does not help

A loss scale: it lifts gradients, not weights. Training on: what was cast to zero starts from zero. A lower learning
rate: the first forward is wrong already.

## References

Incident taxonomy (one public incident; a twin trained from scratch was healthy); IEEE 754 binary16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import MIN_SUBNORMAL_FLOAT16, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Severity, Where

MANY, MOST = 0.05, 0.5
"""Shares of a matrix. At 5 % its rms is 5e-7 and what is left is rounded by 4 %; at one half it is as good as zero."""
SHOWN = 5

_EMBEDDING = re.compile(r"(embed|wte|wpe|shared|lm_head|embed_out)[^.]*\.weight$")

remedies = ["use-bfloat16", "float32-modules"]
public_incidents = 1
foresees = "weights"

tells: Tells = {
    **FLOAT16_ONLY,
    "computes-float16": (HINT, "small weights vanish in float16"),
    "does-not-learn": (HINT, "a weight that is 0 stays 0"),
    "scratch-works": (STRONG, "other weights are healthy, so these are at fault"),
}


def foresee(precision: Precision, weights: Weights) -> Iterator[Finding]:
    if precision.compute != "float16":
        return
    lost = sorted(((_share(t), t) for t in weights.tensors if _share(t) >= MANY), key=lambda one: -one[0])
    if not lost:
        return
    worst, tensor = lost[0]
    severity: Severity = "error" if worst >= MOST else "warning"
    others = f", and so do many of {len(lost) - 1} more matrices" if len(lost) > 1 else ""
    yield Finding(
        severity=severity,
        message=f"about {worst:.1%} of the weights (rms {tensor.rms:.2g}) become 0 in float16, whose smallest number "
        f"is {MIN_SUBNORMAL_FLOAT16:.2g}{others}",
        where=Where(file=tensor.file, tensor=tensor.name),
        evidence={
            "share": worst, "rms": tensor.rms, "min_float16": MIN_SUBNORMAL_FLOAT16, "dtype": tensor.dtype,
            "tensors": {t.name: share for share, t in lost[:SHOWN]}, "concerned": len(lost),
        },
    )  # fmt: skip


def weigh(precision: Precision, weights: Weights, symptoms: set[str]) -> Iterator[Evidence]:
    vanish = any(_share(t) >= MANY for t in weights.tensors)
    if precision.compute is None and vanish:
        return
    if precision.compute != "float16" or not vanish:
        yield evidence("weights", -DECISIVE, "no weight vanishes in the dtype of compute")
        return
    yield evidence("weights", STRONG, "whole parts of a matrix vanish in float16")
    if any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -STRONG, "but a zero is finite")


def _share(tensor: TensorScan) -> float:
    """Share of a matrix that vanishes; vectors are left out, because a bias of 1e-8 may as well be zero."""
    elements = math.prod(tensor.shape)
    if len(tensor.shape) < 2 or not elements or _EMBEDDING.search(tensor.name):
        return 0.0
    return tensor.underflow / elements

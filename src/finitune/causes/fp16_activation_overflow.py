"""A forward value of the model exceeds 65504, the largest number of float16.

## What happens

Models pre-trained in bfloat16 or float32 were free to grow activations: a feed-forward projection, a residual channel,
the raw query-key product. In float16 such a value becomes inf, the next softmax or norm makes NaN of it, and the loss
is lost. Weights and input decide it, not the learning rate: it fails on the first steps, or on the first wrong token.

## How to tell

float16 anywhere in the effective dtype (flag, load dtype, quantiser default) and a model whose own dtype is wider.
The overflow persists down to loss scale 1. The same batch is finite in bfloat16 or float32. A family is a hint only.

## How to prove

Run the captured step with the module of the origin in float32: it is sound. A like module elsewhere must not help.

## What to do

Compute in bfloat16 where the card can; else keep the few modules that overflow in float32 (float32-modules). A
query-key product wants fused attention, which holds it in float32 (fused-attention).

## What does not help

A lower learning rate, clipping, a smaller loss scale: the forward has already failed. float32 weights under autocast.

## References

huggingface/transformers#5651 (66246 in T5's wo), #28673, #19229, #33317; QwenLM/Qwen3#670, Lightning-AI/litgpt#150,
unslothai/unsloth-zoo#600, deepspeedai/DeepSpeed#697, deepspeedai/DeepSpeedExamples#418 (at learning rate 1e-10).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from finitune.cause import Experiment
from finitune.facts import MAX_FLOAT16, Attention, Model, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Severity, Where
from finitune.reach import Reach
from finitune.signal import Series

REPORTED_FAMILIES = (
    "t5", "mt5", "umt5", "longt5", "gemma", "qwen2", "qwen3", "baichuan", "chatglm", "glm", "phi", "falcon",
    "minicpm", "bloom",
)  # fmt: skip
"""`model_type` prefixes with public float16 overflow reports (incident taxonomy). Used for severity, never alone."""

EAGER_ONLY = ("qwen2", "minicpm")
"""Families whose reports are about the raw query-key product: finite with fused attention, which keeps it in float32
(huggingface/transformers#33317: perplexity NaN eager, 7.14 with sdpa; QwenLM/Qwen3#910)."""

NEAR = 0.5
"""Share of the range that biases alone may take; inputs and tuning add to it."""

OUTLYING = 10.0
"""Peak over rms of a tensor. Of 10^11 normal draws the largest is at 7; outlier activations come from weights that
stand out, so where no family on record and no such weight is met, there is nothing to say."""

CLIMBED = 4.0
"""Last finite loss over the lowest; a model that overflows where it stands has not climbed."""

experiments = [
    Experiment(arm="float32", expect="finite"),
    Experiment(arm="module-float32={origin}", expect="finite", optional=True),
    Experiment(arm="module-float32={sibling}", expect="non-finite", placebo=True),
]
remedies = ["fused-attention", "use-bfloat16", "float32-modules"]
public_incidents = 46


def foresee(
    precision: Precision, model: Model, weights: Weights | None = None, attention: Attention | None = None
) -> Iterator[Finding]:
    if precision.compute != "float16":
        return
    tensors = weights.tensors if weights else ()
    beyond = [tensor for tensor in tensors if tensor.overflow]
    eager = attention is not None and attention.implementation == "eager"
    reaches = weights.reaches if weights and eager else ()
    scores = [reach for reach in reaches if reach.what == "query-key" and reach.value > NEAR * MAX_FLOAT16]
    yield from map(_weights_beyond, beyond)
    if scores:
        yield _score(max(scores, key=lambda score: score.value), len(scores))
    family = model.family or "unknown"
    reported = family.startswith(REPORTED_FAMILIES)
    fused = attention is not None and not eager and family.startswith(EAGER_ONLY)
    if beyond or scores or fused or (model.dtype != "bfloat16" and not (model.dtype is None and reported)):
        return
    if not reported and tensors and all(tensor.peak < OUTLYING * tensor.rms for tensor in tensors):
        return
    record = "" if reported else ", but its activations never had to stay in that range"
    record = f"{'' if reported else 'no '}float16 overflow of the {family} family is on record{record}"
    stored = f"weights are stored in {model.dtype}, " if model.dtype else ""
    yield _finding(
        # A family is a hint; the dtype of the weights is evidence that its activations were free to grow.
        "warning" if reported and model.dtype else "info",
        f"{stored}the run computes in float16 (largest {MAX_FLOAT16:.0f}); {record}",
        _place(precision),
        {"stored": model.dtype, "compute": precision.compute, "family": family}
        | ({"weight_peak": max(tensor.peak for tensor in tensors)} if tensors else {}),
    )


def weigh(origin: Origin, loss: Series | None = None) -> Iterator[Evidence]:
    if origin.phase in ("parameter", "input"):
        yield Evidence(text=f"the {origin.phase} is non-finite before anything is computed", bits=-8.0)
        return
    if origin.dtype != "float16":
        yield Evidence(text=f"the first bad value arises in {origin.dtype}, which reaches 3e38", bits=-8.0)
        return
    losses = loss.values[np.isfinite(loss.values)] if loss is not None else np.zeros(0)
    if len(losses) > 1 and losses[-1] > CLIMBED * losses.min():
        yield Evidence(text=f"the loss had climbed to {losses[-1]:.4g} before: values grew elsewhere", bits=-5.0)
    if origin.phase == "forward":
        peak = f", largest value going in {origin.peak:.4g}" if origin.peak is not None else ""
        yield Evidence(text=f"{origin.op} leaves the range of float16 in the forward{peak}", bits=5.0)
        if "inf" in (origin.values or ""):
            yield Evidence(text="it gives infinities, as an overflow does", bits=1.0)
    else:
        yield Evidence(text="every forward value is within range; the overflow is in the backward", bits=-4.0)


def _score(score: Reach, layers: int) -> Finding:
    share = score.value / MAX_FLOAT16
    message = (
        f"the raw query-key product is {score.value:.0f} from the biases alone, {share:.0%} of the largest float16; "
        "inputs and tuning are added to it, and eager attention stores it before it is scaled"
    )
    where, evidence = Where(file=score.file, tensor=score.tensor), {"head": score.row, "layers": layers}
    return _finding("error" if share > 1 else "warning", message, where, {"query_key": score.value, **evidence})


def _weights_beyond(tensor: TensorScan) -> Finding:
    message = f"{tensor.overflow} elements become inf in float16: peak {tensor.peak:.6g}, limit {MAX_FLOAT16:.0f}"
    where, evidence = Where(file=tensor.file, tensor=tensor.name), {"overflow": tensor.overflow, "peak": tensor.peak}
    return _finding("error", message, where, {**evidence, "dtype": tensor.dtype})


def _finding(severity: Severity, message: str, where: Where, evidence: dict[str, Any]) -> Finding:
    evidence = {**evidence, "max_float16": MAX_FLOAT16}
    return Finding(cause="fp16-activation-overflow", severity=severity, message=message, where=where, evidence=evidence)


def _place(precision: Precision) -> Where:
    file, _, key = (precision.source or "").rpartition(": ")
    return Where(file=file or precision.source, key=key if file else None)

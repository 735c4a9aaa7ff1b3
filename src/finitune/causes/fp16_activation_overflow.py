"""A forward value of the model exceeds 65504, the largest number of float16.

## What happens

Models pre-trained in bfloat16 or float32 were free to grow activations beyond the range of float16: the output of a
feed-forward projection, a residual channel, the raw query-key product. In float16 such a value becomes inf, the next
softmax or norm turns it into NaN, and the loss is lost in the forward pass. Whether it happens depends on the
weights and the input, not on the learning rate: it fails on the first steps, or on the first batch that holds the
wrong token.

## How to tell

float16 anywhere in the effective dtype (flag, load dtype, quantiser default) and a model whose own dtype is wider.
The overflow persists down to loss scale 1, so the scaler is not to blame. The same batch is finite in bfloat16 or
float32. Families with public reports: T5, Gemma, Qwen2, Baichuan, GLM-4, Phi-2, Falcon, Llama-2 with left padding. A
family is a hint, not a verdict: many bfloat16 models train in float16 without trouble.

## How to prove

Run the captured step again with the module of the origin in float32: it becomes sound. The same for a like module
elsewhere must not help. In float32 the largest value that enters the origin is above 65504.

## What to do

Compute in bfloat16 where the card can. Otherwise keep the few modules that overflow in float32 (float32-modules); a
fused attention kernel that accumulates in float32 removes an overflow in the query-key product.

## What does not help

A lower learning rate (it failed with 1e-10) and clipping: the forward has already failed. A fixed or smaller loss
scale: it hides the exception, not the overflow. float32 weights under autocast, when the activation itself is too
large. Clamping activations works but changes the model.

## References

huggingface/transformers#5651 (66246 in T5's wo), huggingface/transformers#28673, huggingface/transformers#19229,
QwenLM/Qwen3#670, hiyouga/LLaMA-Factory#950, Lightning-AI/litgpt#150, unslothai/unsloth-zoo#600,
deepspeedai/DeepSpeed#697, deepspeedai/DeepSpeedExamples#418 (at learning rate 1e-10), arielnlee/Platypus#14.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finitune.cause import Experiment
from finitune.facts import MAX_FLOAT16, Model, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.signal import Series

REPORTED_FAMILIES = (
    "t5", "mt5", "umt5", "longt5", "gemma", "qwen2", "qwen3", "baichuan", "chatglm", "glm", "phi", "falcon", "bloom",
    "minicpm",
)  # fmt: skip
"""`model_type` prefixes with public float16 overflow reports (incident taxonomy). Used for severity, never alone."""

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
remedies = ["use-bfloat16", "float32-modules"]
public_incidents = 46


def foresee(precision: Precision, model: Model, weights: Weights | None = None) -> Iterator[Finding]:
    if precision.compute != "float16":
        return
    beyond = [tensor for tensor in weights.tensors if tensor.overflow] if weights else []
    yield from map(_weights_beyond, beyond)
    family = model.family or "unknown"
    reported = family.startswith(REPORTED_FAMILIES)
    if model.dtype != "bfloat16" or beyond:
        if model.dtype is None and reported:
            yield _by_family(precision, family)
        return
    record = f"float16 overflow of the {family} family is on record"
    if not reported and weights and all(tensor.peak < OUTLYING * tensor.rms for tensor in weights.tensors):
        return
    if not reported:
        record = f"no overflow of the {family} family is on record, but its activations never had to stay in that range"
    peak = max((tensor.peak for tensor in weights.tensors), default=0.0) if weights else None
    yield Finding(
        cause="fp16-activation-overflow",
        severity="warning" if reported else "info",
        message=f"weights are stored in bfloat16, the run computes in float16 (largest {MAX_FLOAT16:.0f}); {record}",
        where=_place(precision),
        evidence={
            "stored": model.dtype,
            "compute": precision.compute,
            "family": family,
            "max_float16": MAX_FLOAT16,
            **({} if peak is None else {"weight_peak": peak}),
        },
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
        yield Evidence(
            text=f"the loss had climbed to {losses[-1]:.4g} before: something else grew the values", bits=-5.0
        )
    if origin.phase == "forward":
        peak = f", largest value going in {origin.peak:.4g}" if origin.peak is not None else ""
        yield Evidence(text=f"{origin.op} leaves the range of float16 in the forward{peak}", bits=5.0)
        if "inf" in (origin.values or ""):
            yield Evidence(text="it gives infinities, as an overflow does", bits=1.0)
    else:
        yield Evidence(text="every forward value is within range; the overflow is in the backward", bits=-4.0)


def _by_family(precision: Precision, family: str) -> Finding:
    return Finding(
        cause="fp16-activation-overflow",
        severity="info",  # a family is a hint; the dtype of the weights would be evidence
        message=f"the run computes in float16, and float16 overflow of the {family} family is on record",
        where=_place(precision),
        evidence={"family": family, "compute": precision.compute, "max_float16": MAX_FLOAT16},
    )


def _weights_beyond(tensor: TensorScan) -> Finding:
    return Finding(
        cause="fp16-activation-overflow",
        severity="error",
        message=f"{tensor.overflow} elements become inf in float16: peak {tensor.peak:.6g}, limit {MAX_FLOAT16:.0f}",
        where=Where(file=tensor.file, tensor=tensor.name),
        evidence={"overflow": tensor.overflow, "peak": tensor.peak, "max_float16": MAX_FLOAT16, "dtype": tensor.dtype},
    )


def _place(precision: Precision) -> Where:
    file, _, key = (precision.source or "").rpartition(": ")
    return Where(file=file or precision.source, key=key if file else None)

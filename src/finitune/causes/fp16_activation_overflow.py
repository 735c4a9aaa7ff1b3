"""A forward value of the model exceeds 65504, the largest number of float16.

## What happens

Models pre-trained in bfloat16 or float32 were free to grow activations beyond the range of float16: a feed-forward
projection, a residual channel, the raw query-key product. In float16 such a value becomes inf, the next softmax or norm
turns it into NaN, and the loss is lost. Where only padding overflows, ignored labels keep the loss finite.

## How to tell

float16 in the effective dtype, a model of a wider one; at loss scale 1 too. float32 is sound.

## How to prove

Run the captured step with the module of the origin in float32: sound. With a like module elsewhere: not.

## What to do

Compute in bfloat16 where the card can, else keep the modules that overflow in float32. Pack rows where only padding
overflows. Fused attention removes an overflow in the query-key product.

## What does not help

A lower learning rate, clipping, another loss scale: the forward has already failed. float32 weights under autocast.

## References

huggingface/transformers#5651 (66246 in T5's wo), #28673, #19229, QwenLM/Qwen3#670, deepspeedai/DeepSpeedExamples#418
(at learning rate 1e-10), unslothai/unsloth#911 (padding only: sound when packed).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment, Needs, needs
from finitune.facts import MAX_FLOAT16, Activations, Attention, Model, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.series import Series, lowest_level

FAMILIES = "t5 mt5 umt5 longt5 gemma qwen2 qwen3 baichuan chatglm glm phi falcon bloom minicpm"
"""`model_type` prefixes with public float16 overflow reports. Used for severity, never alone."""
EAGER_ONLY = ("qwen2", "minicpm")
"""Reported for the query-key product, so sound with fused attention (huggingface/transformers#33317)."""
NEAR = 0.5  # share of the range from which a raw query-key product is told: other tokens and tuning add to it
AMPLE = 1 / 16
"""Share of the range. First tokens carry the largest activations of a decoder; where they stay below, others do."""
CLIMBED = 4.0  # last finite loss over the lowest; a model that overflows where it stands has not climbed
experiments = [
    Experiment(arm="float32", expect="finite"),
    Experiment(arm="module-float32={origin}", expect="finite", optional=True),
    Experiment(arm="module-float32={sibling}", expect="non-finite", placebo=True),
]
remedies = ["fused-attention", "use-bfloat16", "pack-rows", "float32-modules"]
public_incidents = 46
tells = {
    "zero-loss-zero-gradient zero-loss-finite-gradient": (-3.5, "the gradient goes too"),
    "computes-bfloat16 computes-float32": (-5.0, "it has the range"),
    "no-bfloat16-card": (1.0, "16 bits mean float16"),
    "bfloat16-sound float32-sound": (1.5, "it has the range"),
    "tiny-rate from-the-start": (1.0, "no update is needed"),
    "scale-at-minimum scale-fell": (3.5, "at every scale"),
    "bfloat16-bad float32-bad": (-3.5, "it has the range"),
    "loss-not-finite": (2.0, "the forward made it"),
    "gradient-first": (2.0, "only pads overflow"),
    "device-side-assert": (1.0, "NaN is sampled"),
    "computes-float16": (3.0, "it ends at 65504"),
    "speaks-of-float16": (1.0, "it is spoken of"),
    "rate-frozen": (2.0, "the steps are skipped"),
    "nonfinite-parameter": (2.0, "a bad update"),
    "activations-large": (2.5, "beyond 65504"),
    "sentinel-norm": (-5.0, "a scaler skips"),
    "hidden-loss": (2.5, "0 stands for NaN"),
    "kernel-level": (-1.0, "no model runs"),
    "family-overflows": (1.3, "on record"),
    "float16-bad": (1.5, "only there"),
    "float16-sound": (-4.0, "it is sound"),
    "climbed diverged loss-jumped": (-2.5, "it needs no climb"),
    "probability-tensor token-zero-output": (2.5, "logits are NaN"),
    "goes-on weights-even": (-2.5, "it stays, and has outliers"),
    "sudden second-step sound-loss evaluation-only": (-1.0, "it shows at once, in the loss"),
}


def foresee(
    precision: Precision, model: Model, weights: Weights | None = None, activations: Activations | None = None,
    attention: Attention | None = None,
) -> Iterator[Finding | Needs]:  # fmt: skip
    if precision.compute != "float16":
        return
    eager = attention is not None and attention.implementation == "eager"
    beyond = [tensor for tensor in weights.tensors if tensor.overflow] if weights else []
    seen = [*(_reached(activations, eager=eager) if activations else ()), *map(_weights_beyond, beyond)]
    yield from seen
    if not seen:
        yield from needs(weights=weights)
        if eager or weights is None or any(tensor.outlying for tensor in weights.tensors):
            yield from needs(activations=activations)
        if activations and any(_reached(activations, eager=True)):
            yield from needs(attention=attention)
    reported = (family := model.family or "unknown").startswith(tuple(FAMILIES.split()))
    fused = attention is not None and not eager and family.startswith(EAGER_ONLY)
    if seen or fused or (model.dtype != "bfloat16" and not (model.dtype is None and reported)):
        return
    record = f"float16 overflow of the {family} family is on record"
    if not reported:
        first = [peak.value for peak in activations.first] if activations else []
        ample = first and max(first) < AMPLE * MAX_FLOAT16
        if ample or (weights and not any(tensor.outlying for tensor in weights.tensors)):
            return
        record = f"no overflow of the {family} family is on record, but its activations never had to stay in that range"
    peak = {"weight_peak": max((tensor.peak for tensor in weights.tensors), default=0.0)} if weights else {}
    stored = {"stored": model.dtype, "compute": precision.compute, "family": family, "max_float16": MAX_FLOAT16}
    held = f"weights are stored in {model.dtype}, " if model.dtype else ""
    yield Finding(
        severity="warning" if reported and model.dtype else "info",  # a family alone is a hint
        message=f"{held}the run computes in float16 (largest {MAX_FLOAT16:.0f}); {record}",
        where=Where.said(precision.source),
        evidence={**stored, **peak},
    )


def weigh(origin: Origin, loss: Series | None = None) -> Iterator[Evidence]:
    if (early := origin.phase in ("parameter", "input")) or origin.dtype != "float16":
        wide = f"the first bad value arises in {origin.dtype}, which reaches 3e38"
        yield Evidence(text=f"the {origin.phase} is bad before anything is computed" if early else wide, bits=-8.0)
        return
    losses = loss.values[np.isfinite(loss.values)] if loss is not None else np.zeros(0)
    lowest = lowest_level(losses)
    if lowest is not None and losses[-1] > CLIMBED * lowest:
        yield Evidence(text=f"the loss had climbed to {losses[-1]:.4g} before: other causes do that", bits=-5.0)
    if origin.phase == "forward":
        peak = f", largest value going in {origin.peak:.4g}" if origin.peak is not None else ""
        yield Evidence(text=f"{origin.op} leaves the range of float16 in the forward{peak}", bits=5.0)
        if "inf" in (origin.values or ""):
            yield Evidence(text="it gives infinities", bits=1.0)
    else:
        yield Evidence(text="every forward value is within range; the overflow is in the backward", bits=-4.0)


def _reached(activations: Activations, *, eager: bool) -> Iterator[Finding]:
    """The first place where a token that stands alone leaves the range."""
    for peaks, pads in ((activations.first, False), (activations.padding, True)):
        near = {"query . key": (1.0 if pads else NEAR) if eager else math.inf}
        beyond = [p for p in peaks if p.value > near.get(p.what, 1.0) * MAX_FLOAT16]
        for one in beyond[:1]:
            does = "pads rows, is computed like any other" if pads else "begins sequences"
            ignored = "; ignored labels keep that out of the loss, not out of the gradients" if pads else ""
            yield Finding(
                severity="warning" if pads or one.value <= MAX_FLOAT16 else "error",
                message=f"token {one.token} {does} and reaches {one.value:.3g} in {one.module} ({one.what}), "
                f"limit of float16 {MAX_FLOAT16:.0f}{ignored}",
                where=Where(file=activations.source, module=one.module, tokens=[one.token]),
                evidence={"beyond": beyond[:8], "max_float16": MAX_FLOAT16, "padding": pads},
            )  # fmt: skip


def _weights_beyond(tensor: TensorScan) -> Finding:
    return Finding(
        severity="error",
        message=f"{tensor.overflow} elements become inf in float16: peak {tensor.peak:.6g}, limit {MAX_FLOAT16:.0f}",
        where=Where(file=tensor.file, tensor=tensor.name),
        evidence={"overflow": tensor.overflow, "peak": tensor.peak, "max_float16": MAX_FLOAT16, "dtype": tensor.dtype},
    )  # fmt: skip

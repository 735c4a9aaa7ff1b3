"""A forward value of the model exceeds 65504, the largest number of float16.

## What happens

Models pre-trained in bfloat16 or float32 were free to grow activations beyond the range of float16: a feed-forward
projection, a residual channel, the raw query-key product. In float16 such a value becomes inf, the next softmax or norm
turns it into NaN, and the loss is lost. Where only padding overflows, ignored labels keep the loss finite.

## How to tell

float16 in the effective dtype, a model of a wider one; at loss scale 1 too. float32 is finite.

## How to prove

Run the captured step with the module of the origin in float32: finite. With a like module elsewhere: not.

## What to do

Compute in bfloat16 where the card can, else keep the modules that overflow in float32. Pack rows where only padding
overflows. Fused attention removes an overflow in the query-key product.

## What does not help

A lower learning rate, clipping, another loss scale: the forward has already failed. float32 weights under autocast.

## References

huggingface/transformers#5651 (66246 in T5's wo), #28673, #19229, QwenLM/Qwen3#670, deepspeedai/DeepSpeedExamples#418
(at learning rate 1e-10), unslothai/unsloth#911 (padding only: healthy when packed).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import MAX_FLOAT16, Activations, Attention, Model, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.naming import WIDE
from finitune.series import CLIMBED, Series, climb

FAMILIES = "t5 mt5 umt5 longt5 gemma qwen2 qwen3 baichuan chatglm glm phi falcon bloom minicpm"
"""`model_type` prefixes with public float16 overflow reports. Used for severity, never alone."""
EAGER_ONLY = ("qwen2", "minicpm")
"""Reported for the query-key product, so finite with fused attention (huggingface/transformers#33317)."""
NEAR = 0.5  # share of the range from which a raw query-key product is reported: other tokens and tuning add to it
AMPLE = 1 / 16
"""Share of the range. First tokens carry the largest activations of a decoder; where they stay below, others do."""
experiments = [
    Experiment(arm="float32", expect="finite"),
    Experiment(arm="module-float32={origin}", expect="finite", optional=True),
    Experiment(arm="module-float32={sibling}", expect="non-finite", placebo=True),
]
remedies = ["fused-attention", "use-bfloat16", "pack-rows", "use-float32", "float32-modules"]
public_incidents = 46
foresees = "family overflows"
tells: Tells = {
    **FLOAT16_ONLY,
    "no-bfloat16-card": (HINT, "on such a card 16 bits mean float16"),
    "bfloat16-works": (HINT, "a dtype with a wider range is healthy"),
    "float32-works": (HINT, "a dtype with a wider range is healthy"),
    "tiny-learning-rate": (HINT, "no update is needed for it"),
    "from-the-start": (HINT, "no update is needed for it"),
    "scale-at-minimum": (STRONG, "a forward that overflows does so at every loss scale"),
    "loss-scale-collapse": (STRONG, "a forward that overflows does so at every loss scale"),
    "bfloat16-fails": (-STRONG, "a dtype with a wider range fails too"),
    "float32-fails": (-STRONG, "a dtype with a wider range fails too"),
    "nonfinite-loss": (HINT, "a forward that overflows shows in the loss"),
    "gradient-first": (HINT, "an overflow at padding positions shows in the gradient alone"),
    "forward-lost": (STRONG, "no update has touched the weights, so the forward overflows by itself"),
    "computes-float16": (STRONG, "activations overflow above 65504"),
    "speaks-of-float16": (HINT, "activations overflow above 65504"),
    "updates-skipped": (STRONG, "the loss scaler skips these steps"),
    "nonfinite-parameter": (STRONG, "an update with a bad gradient made the weights NaN"),
    "activations-large": (STRONG, "activations beyond 65504 are reported"),
    "hidden-loss": (HINT, "a forward that overflows gives NaN, which is printed as 0"),
    "kernel-level": (-HINT, "a single operation has no activations of a model"),
    "family-overflows": (HINT, "models of this family are on record for it"),
    "float16-fails": (HINT, "only in float16 does it fail"),
    "float16-works": (-STRONG, "in float16 the model is healthy"),
    "climbed": (-STRONG, "an overflow comes without a climb"),
    "divergence": (-STRONG, "an overflow comes without a climb"),
    "loss-jumped": (-STRONG, "an overflow comes without a climb"),
    "probability-tensor": (STRONG, "a forward that overflows gives NaN logits"),
    "token-zero-output": (STRONG, "a forward that overflows gives NaN logits"),
    "goes-on": (-STRONG, "activations that overflow do so again"),
    "weights-even": (-STRONG, "the weights have no outliers, which such activations come from"),
    "sudden": (-HINT, "most overflows show in the first steps"),
    "second-step": (-STRONG, "the forward of the first step was finite"),
    "finite-loss": (-HINT, "a forward that overflows shows in the loss"),
    "nonfinite-evaluation": (-HINT, "the forward of training would overflow too"),
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
        # a family alone is a hint, but for those whose every release is on record
        severity="warning" if family.startswith(WIDE) or (reported and model.dtype) else "info",
        message=f"{held}the run computes in float16 (largest {MAX_FLOAT16:.0f}); {record}",
        where=Where.said(precision.source),
        evidence={**stored, **peak},
    )


PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
"""Operators of a model, also where no module was seen to run them."""


def weigh(origin: Origin, loss: Series | None = None) -> Iterator[Evidence]:
    if (early := origin.phase in ("parameter", "input")) or origin.dtype != "float16":
        wide = f"the first bad value arises in {origin.dtype}, which reaches 3e38"
        yield evidence("origin", -DECISIVE, f"the {origin.phase} is bad before anything is computed" if early else wide)
        return
    times = climb(loss.values) if loss is not None else None
    if times is not None and times > CLIMBED:
        text = f"the loss had climbed to {times:.3g} times its level before: other causes do that"
        yield evidence("loss curve", -DECISIVE, text)
    if origin.phase == "forward":
        peak = f", largest value going in {origin.peak:.4g}" if origin.peak is not None else ""
        text = f"{origin.op} leaves the range of float16 in the forward{peak}"
        if origin.module is None and origin.op not in PRODUCTS and not origin.is_of_encoder:
            yield evidence("origin", HINT, f"{text}, outside of the model")
        else:
            yield evidence("origin", DECISIVE, text)
    else:
        yield evidence("origin", -STRONG, "every forward value is within range; the overflow is in the backward")


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

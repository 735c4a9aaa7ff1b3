"""A forward value of the model exceeds 65504, the largest number of float16.

## What happens

Models pre-trained in a wider dtype were free to grow activations: a feed-forward projection, a residual channel, the
raw query-key product. In float16 such a value becomes inf and the next softmax or norm makes NaN of it. Where the token
is padding and the overflow late in the network, only the gradients are NaN: 0 * NaN is NaN.

## How to tell

float16 in the effective dtype, a model whose own dtype is wider. The overflow persists at loss scale 1; the same batch
is finite in float32. A family with public reports is a hint only.

## How to prove

Run the captured step again with the module of the origin in float32: sound. With a like module elsewhere: not.

## What to do

Compute in bfloat16 where the card can. Otherwise keep the few modules that overflow in float32 (float32-modules); pack
rows where only padding overflows. A query-key product wants fused attention, which holds it in float32.

## What does not help

A lower learning rate, clipping, another loss scale: the forward has already failed. float32 weights under autocast.

## References

huggingface/transformers#5651 (66246 in T5's wo), #28673, #33317; QwenLM/Qwen3#670, deepspeedai/DeepSpeed#697,
deepspeedai/DeepSpeedExamples#418 (at learning rate 1e-10), unslothai/unsloth#911 (padding only).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from finitune.cause import Experiment
from finitune.facts import MAX_FLOAT16, Activations, Attention, Model, Precision, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Severity, Where
from finitune.reach import Reach
from finitune.signal import Series

REPORTED_FAMILIES = (
    "t5", "mt5", "umt5", "longt5", "gemma", "qwen2", "qwen3", "baichuan", "chatglm", "glm", "phi", "falcon",
    "minicpm", "bloom",
)  # fmt: skip
"""`model_type` prefixes with public float16 overflow reports (incident taxonomy). Used for severity, never alone."""
EAGER_ONLY = ("qwen2", "minicpm")
"""Their reports are about the raw query-key product: finite with fused attention (huggingface/transformers#33317)."""
NEAR = 0.5
"""Share of the range that biases alone may take; inputs and tuning add to it."""
AMPLE = 1 / 16
"""Share of the range. First tokens carry the largest activations of a decoder; where they stay below, others do."""
CLIMBED = 4.0
"""Last finite loss over the lowest; a model that overflows where it stands has not climbed."""
experiments = [
    Experiment(arm="float32", expect="finite"),
    Experiment(arm="module-float32={origin}", expect="finite", optional=True),
    Experiment(arm="module-float32={sibling}", expect="non-finite", placebo=True),
]
remedies = ["fused-attention", "use-bfloat16", "pack-rows", "float32-modules"]
public_incidents = 46


def foresee(
    precision: Precision, model: Model, weights: Weights | None = None, activations: Activations | None = None,
    attention: Attention | None = None,
) -> Iterator[Finding]:  # fmt: skip
    if precision.compute != "float16":
        return
    eager = attention is not None and attention.implementation == "eager"
    tensors = weights.tensors if weights else ()
    scores = [r for r in weights.reaches if r.what == "query-key" and r.value > NEAR * MAX_FLOAT16] if weights else []
    seen = [*(_reached(activations, eager=eager) if activations else ())]
    seen += [_weights_beyond(tensor) for tensor in tensors if tensor.overflow]
    seen += [_score(max(scores, key=lambda score: score.value), len(scores))] if scores and eager else []
    yield from seen
    reported = (family := model.family or "unknown").startswith(REPORTED_FAMILIES)
    fused = attention is not None and not eager and family.startswith(EAGER_ONLY)
    if seen or fused or (model.dtype != "bfloat16" and not (model.dtype is None and reported)):
        return
    ample = activations is not None and max((p.value for p in activations.first), default=1e38) < AMPLE * MAX_FLOAT16
    if not reported and (ample or (tensors and not any(tensor.outlying for tensor in tensors))):
        return
    record = f"{'' if reported else 'no '}float16 overflow of the {family} family is on record"
    stored = f"weights are stored in {model.dtype}, " if model.dtype else ""
    yield _finding(
        "warning" if reported and model.dtype else "info",  # a family alone is a hint
        f"{stored}the run computes in float16 (largest {MAX_FLOAT16:.0f}); {record}",
        Where.said(precision.source),
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
        beyond = [p for p in peaks if p.value > MAX_FLOAT16 and (eager or p.what != "query . key")]
        for one in beyond[:1]:
            does = "pads rows, is computed like any other" if pads else "begins sequences"
            yield _finding(
                "warning" if pads else "error",
                f"token {one.token} {does} and reaches {one.value:.3g} in {one.module} ({one.what}), limit of float16 "
                f"{MAX_FLOAT16:.0f}{'; ignored labels keep that out of the loss, not out of the gradients' * pads}",
                Where(file=activations.source, module=one.module, tokens=[one.token]),
                {"beyond": beyond[:8], "padding": pads},
            )


def _score(score: Reach, layers: int) -> Finding:
    """Inputs and tuning are added to what the biases give, and eager attention stores it before it is scaled."""
    share, where = score.value / MAX_FLOAT16, Where(file=score.file, tensor=score.tensor)
    message = f"raw query-key products reach {score.value:.0f} by the biases alone, {share:.0%} of the range of float16"
    evidence = {"query_key": score.value, "head": score.row, "layers": layers}
    return _finding("error" if share > 1 else "warning", message, where, evidence)


def _weights_beyond(tensor: TensorScan) -> Finding:
    message = f"{tensor.overflow} elements become inf in float16: peak {tensor.peak:.6g}, limit {MAX_FLOAT16:.0f}"
    where, evidence = Where(file=tensor.file, tensor=tensor.name), {"overflow": tensor.overflow, "peak": tensor.peak}
    return _finding("error", message, where, {**evidence, "dtype": tensor.dtype})


def _finding(severity: Severity, message: str, where: Where, evidence: dict[str, Any]) -> Finding:
    numbers = {**evidence, "max_float16": MAX_FLOAT16}
    return Finding(cause="fp16-activation-overflow", severity=severity, message=message, where=where, evidence=numbers)

"""A padded position sees no key at all, and its softmax becomes NaN or garbage.

## What happens

With padding on the left and a causal mask, the first positions see only padding, which is masked: their row of the
mask is empty. Eager attention adds the smallest number of the dtype to every score of such a row; in float16 that is
-65504, a negative score pushes it to -inf, and the softmax of a row of -inf is NaN. bfloat16 does not reach it. Other
kernels give uniform weights or NaN there, by version. The padded positions are ignored by the loss, but 0 times NaN is
NaN, so the batch is lost, forward or backward.

## How to tell

It fails with batch size 2 and not with 1, and packing cures it. The first bad value is at padded positions, in a
softmax. Left padding, eager attention, float16.

## How to prove

Run the captured step row by row, or padded on the other side: it becomes finite. The rows in another order do not
help.

## What to do

Pad on the right for training (pad-right), pack, or use a fused kernel with a release that unmasks such rows.

## What does not help

Batch size 1 is a way round, not a cure. A lower learning rate, clipping: the NaN is in the forward, or in the gradient
before both. Treating the pattern as an overflow of large batches: it is the padding, not the size.

## References

huggingface/transformers#27179 (maintainer), #29739, #32390, #38690; pytorch/pytorch#101967 (0 times NaN);
ludwig-ai/ludwig#3950; measured in this project: scores below -16 in an empty float16 row give NaN, in bfloat16 not.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Attention, Batching, Optimizer, Precision, Quantization, Vocabulary
from finitune.finding import Evidence, Finding, Origin, Severity, Where

experiments = [
    Experiment(arm="row-by-row", expect="finite"),
    Experiment(arm="pad-other-side", expect="finite"),
    Experiment(arm="reverse-rows", expect="non-finite", placebo=True),
    Experiment(arm="zero-empty-rows", expect="finite", optional=True),
    Experiment(arm="zero-other-rows", expect="non-finite", placebo=True),
]
remedies = ["pad-right", "set-compute-dtype", "zero-masked-rows"]
public_incidents = 14
foresees = "pads left"

tells: Tells = {
    "rows-fully-masked": (STRONG, "a softmax over no key is 0/0"),
    "pads-left": (STRONG, "a pad at the front sees no key"),
    "unequal-lengths": (STRONG, "only padded rows can be fully masked"),
    "packing-works": (STRONG, "packed rows have no padding"),
    "batch-of-one-works": (STRONG, "a batch of one has no padding"),
    "batch-of-several-fails": (STRONG, "only batches with padding fail"),
    "scaled-dot-product": (HINT, "its kernels treat rows without a key differently"),
    "plain-attention-works": (HINT, "kernels treat rows without a key differently"),
    "explicit-mask": (HINT, "the mask decides which keys a row sees"),
    "flash-off": (HINT, "without fused attention the mask is added as numbers"),
    "pads-nonfinite": (STRONG, "a pad is the position that sees no key"),
    "nonfinite-loss": (HINT, "a softmax over no key is 0/0"),
    "hidden-loss": (HINT, "a softmax over no key is NaN, which is printed as 0"),
    "gradient-first": (HINT, "NaN at a pad may leave the loss finite, and not the gradient"),
    "from-the-start": (HINT, "no update is needed for it"),
    "midway": (-HINT, "most batches have padding, also the first"),
    "sudden": (-STRONG, "most batches have padding, also the first"),
    "climbed": (-STRONG, "a fully masked row comes without a climb"),
    "nonfinite-evaluation": (HINT, "evaluation pads in its own way"),
    "nonfinite-parameter": (STRONG, "an update with a bad gradient made the weights NaN"),
    "nonfinite-gradient-check": (HINT, "the gradient of a fully masked row is NaN"),
    "second-step": (-STRONG, "fully masked rows are there from the first batch"),
    "zero-loss-finite-gradient": (-STRONG, "NaN from a softmax spoils the gradient too"),
    "zero-loss-zero-gradient": (-STRONG, "NaN from a softmax spoils the gradient too"),
    "loss-jumped": (-STRONG, "updates had ruined the model"),
}


def foresee(
    optimizer: Optimizer,
    precision: Precision | None = None,
    quantization: Quantization | None = None,
    batching: Batching | None = None,
    attention: Attention | None = None,
    vocabulary: Vocabulary | None = None,
) -> Iterator[Finding | Needs]:
    half = (precision and precision.compute == "float16") or (quantization and quantization.compute_dtype == "float16")
    said = batching.padding_side if batching else None
    side = said or (vocabulary.padding_side if vocabulary else None)
    packed = batching is not None and batching.packing is True
    kernel = attention.implementation if attention else None
    half = half and not (attention and attention.dtype == "float32")
    if packed or optimizer.batch == 1 or kernel not in (None, "eager", "sdpa") or (said and side != "left"):
        return
    if not half:
        yield from needs(precision=precision, quantization=quantization)
        return
    if side != "left":
        yield from needs(batching=batching, vocabulary=vocabulary)
        return
    # The tokenizer's own side is often set for generation, and the collator pads on the other: then it is a hint.
    severity: Severity = "warning" if kernel == "eager" and said else "info"
    source = batching.source if batching and said else vocabulary.source if vocabulary else None
    yield Finding(
        severity=severity,
        message=f"left padding with {kernel or 'unnamed'} attention in float16: padded positions see no key, and "
        "-65504 plus a negative score is -inf, whose softmax is NaN",
        where=Where(file=source, key="padding_side"),
        evidence={"padding_side": side, "attention": kernel, "batch": optimizer.batch, "max_float16": 65504.0},
    )


def weigh(origin: Origin) -> Iterator[Evidence]:
    softmax = ("softmax" in origin.op and "log_softmax" not in origin.op) or "attention" in origin.op
    if origin.phase == "forward" and _is_spelled_softmax(origin):  # whose result holds the -inf of other rows too
        yield evidence("origin", DECISIVE, f"{origin.op} of attention gives {origin.values}, as of a row without a key")
        return
    if not softmax or origin.phase not in ("forward", "backward"):
        yield evidence("origin", -DECISIVE, f"the first bad value is in {origin.op}, not in the softmax of attention")
        return
    if "nan" in (origin.values or ""):
        yield evidence("origin", DECISIVE, f"{origin.op} gives NaN from finite scores, as an empty row does")
    if origin.padding is not None:
        text = "at padded positions" if origin.padding else "at real tokens, which always see themselves"
        yield evidence("padding", STRONG if origin.padding else -DECISIVE, text)


def _is_spelled_softmax(origin: Origin) -> bool:
    """Of a module that attends by its own arithmetic: the largest score of no key, -inf, is taken from -inf, or what
    remains is divided by a sum of nothing, one of several rows; one number that divides all is a norm.
    """
    attends = any(word in (origin.module or "").lower() for word in ("attention", "attn"))
    subtracts = origin.op == "aten.sub" and "nan" in (origin.values or "") and "-inf" in (origin.values or "")
    divides = origin.op == "aten.div" and origin.divisor is not None and not origin.divisor.startswith("1 of 1 ")
    return attends and (subtracts or divides)

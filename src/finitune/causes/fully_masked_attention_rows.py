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

Run the captured step row by row, or padded on the other side: it becomes sound. The rows in another order do not
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
from finitune.facts import Attention, Batching, Optimizer, Precision, Quantization, Vocabulary
from finitune.finding import Evidence, Finding, Origin, Severity, Where

experiments = [
    Experiment(arm="row-by-row", expect="finite"),
    Experiment(arm="pad-other-side", expect="finite"),
    Experiment(arm="reverse-rows", expect="non-finite", placebo=True),
]
remedies = ["pad-right", "set-compute-dtype"]
public_incidents = 14

tells = {
    "rows-fully-masked": (4.0, "softmax over no key is 0/0"),
    "pads-left": (2.5, "a pad at the front sees no key"),
    "unequal-lengths": (2.5, "only padded rows can be fully masked"),
    "packing-sound": (4.0, "packed rows have no padding"),
    "batch-of-one-sound": (4.0, "a batch of one has no padding"),
    "batch-of-several-bad": (3.0, "only padded batches fail"),
    "scaled-dot-product plain-attention-sound": (1.0, "backends treat such rows differently"),
    "explicit-mask": (1.0, "masks decide"),
    "flash-off": (1.5, "without fused attention the mask is added as numbers"),
    "pads-spoiled": (2.5, "a pad is the row that sees nothing"),
    "loss-not-finite": (2.0, "softmax over no key is 0/0"),
    "hidden-loss": (2.0, "0/0, printed as 0"),
    "gradient-first": (1.0, "the forward was sound, the backward was not"),
    "from-the-start": (1.0, "no update is needed"),
    "midway": (-1.0, "it would have shown in the first batches"),
    "sudden": (-2.0, "it would have shown at once"),
    "climbed": (-4.0, "it comes without a climb"),
    "evaluation-only": (1.0, "evaluation computes otherwise, or of other rows"),
    "nonfinite-parameter": (2.0, "adapters were spoilt by a bad gradient"),
    "nonfinite-gradient-check": (1.0, "a gradient of a masked row"),
    "second-step": (-2.0, "such rows are there from the first batch"),
    "zero-loss-finite-gradient": (-3.0, "a NaN of the softmax spoils the gradient too"),
    "zero-loss-zero-gradient": (-3.0, "a NaN of the softmax spoils the gradient too"),
    "loss-jumped": (-3.0, "updates ruined the model"),
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
    softmax = "softmax" in origin.op or "attention" in origin.op
    if not softmax or origin.phase not in ("forward", "backward"):
        yield Evidence(text=f"the first bad value is in {origin.op}, not in the softmax of attention", bits=-8.0)
        return
    if "nan" in (origin.values or ""):
        yield Evidence(text=f"{origin.op} gives NaN from finite scores, as an empty row does", bits=5.0)
    if origin.padding is not None:
        text = "at padded positions" if origin.padding else "at real tokens, which always see themselves"
        yield Evidence(text=text, bits=3.0 if origin.padding else -6.0)

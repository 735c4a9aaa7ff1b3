"""Packed documents see one another, because the attention in use has no mask for it.

## What happens

Packing puts several documents into one row. Kernels with variable lengths (flash attention) keep them apart by their
positions; eager and SDPA attention need a block mask that many trainers do not build, so every document reads the
ones before it. Nothing is non-finite. The loss is a few hundredths off, lower where the documents are alike.

## How to tell

Packing on, attention eager or SDPA, a two-dimensional mask of ones. The loss of the same data without packing differs.

## How to prove

Run two documents packed and apart, and compare the logits of the second.

## What to do

Use a kernel with variable lengths (separate-documents), or leave packing off.

## What does not help

An end token between the documents: attention reads across it. It is not an explanation for a loss that stands still;
that was tested and refuted.

## References

axolotl-ai-cloud/axolotl#3796 (fixed for eager and SDPA), huggingface/trl#3910 (measured: 0.03 to 0.15 of the final
loss).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Attention, Batching
from finitune.finding import Evidence, Finding, Where

NO_LENGTHS = ("eager", "sdpa")

remedies = ["separate-documents"]
public_incidents = 4
foresees = "packed"
unseen = "whether documents of a packed row see one another"

tells: Tells = {
    "packed": (STRONG, "documents of a packed row may see each other"),
    "packing-works": (-STRONG, "with packing it is healthy, so packing is not the fault"),
    "flash-off": (STRONG, "only kernels that know the lengths keep documents apart"),
    "scaled-dot-product": (HINT, "it needs a block mask to keep documents apart"),
    "nonfinite-gradient": (-STRONG, "documents that see each other leave every number finite"),
    "nonfinite-loss": (-STRONG, "documents that see each other leave every number finite"),
    "eight-bit-adam": (-HINT, "the optimizer is the likelier reason"),
    "pure-bfloat16": (-HINT, "rounding of updates is the likelier reason"),
    "documents-mixed": (STRONG, "documents of a row are said to see each other"),
}


def foresee(batching: Batching, attention: Attention | None = None) -> Iterator[Finding | Needs]:
    if attention is None or not _leaks(batching, attention):
        yield from needs(attention=attention) if batching.packing else ()
        return
    # Worth knowing, no more: plain packing is how pre-training is done, and the effect is small.
    yield Finding(
        severity="info",
        message=f"rows are packed and attention is {attention.implementation}, which keeps documents apart only with a "
        "block mask; without one the loss is off by 0.03 to 0.15",
        where=Where(file=batching.source, key="packing"),
        evidence={"packing": True, "attention": attention.implementation},
    )


def weigh(batching: Batching, attention: Attention, symptoms: set[str]) -> Iterator[Evidence]:
    if batching.packing is None:
        return
    if not _leaks(batching, attention):
        yield evidence("packed", -DECISIVE, "rows are not packed, or the kernel knows where documents end")
    elif symptoms:
        yield evidence("loss", -DECISIVE, "documents that see one another leave every number finite")


def _leaks(batching: Batching, attention: Attention) -> bool:
    return batching.packing is True and attention.implementation in NO_LENGTHS

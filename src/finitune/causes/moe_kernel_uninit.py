"""Rows of experts without tokens are never written, and read all the same.

## What happens

A grouped matrix product writes the rows of each expert. Where an expert gets no token, or rows are padded to a block,
the output keeps what the memory held before; the backward multiplies it by zero, and 0 * NaN is NaN.

## How to tell

Many experts, few tokens per rank, expert parallelism. The first step is sound, because fresh memory is clean; the
second is NaN. It depends on what ran before.

## How to prove

Fill the output with zeros before the product: sound. Run the experts one by one: sound.

## What to do

Zero or mask those rows, use the loop over experts (change-settings), or a release that does (upgrade-package).

## What does not help

A lower learning rate, clipping, bfloat16 for float16: what is read is not a result at all.

## References

huggingface/transformers#45621 (grouped products under expert parallelism), meta-pytorch/MSLK#158.
"""

remedies = ["upgrade-package"]
public_incidents = 4

tells = {
    "grouped-gemm": (4.0, "rows of experts without tokens are not written"),
    "experts": (2.0, "there are experts"),
    "memory-uninitialised": (2.0, "rows that nobody wrote"),
    "second-step": (1.0, "stale memory is clean at first"),
    "router": (-1.0, "routing is another matter"),
    "gradient-first": (1.5, "the products of the backward leave rows out too"),
    "hidden-loss loss-not-finite": (1.0, "stale memory may be NaN"),
    "gradient-nan": (1.0, "unwritten rows reach the gradient"),
}

"""Rows of experts without tokens are never written, and read all the same.

## What happens

A grouped matrix product writes the rows of each expert. Where an expert gets no token, or rows are padded to a block,
the output keeps what the memory held before; the backward multiplies it by zero, and 0 * NaN is NaN.

## How to tell

Many experts, few tokens per rank, expert parallelism. The first step is finite, because fresh memory is clean; the
second is NaN. It depends on what ran before.

## How to prove

Fill the output with zeros before the product: finite. Run the experts one by one: finite.

## What to do

Zero or mask those rows, use the loop over experts (change-settings), or
install a later release of the kernel, which zeroes them (upgrade-package).

## What does not help

A lower learning rate, clipping, bfloat16 for float16: what is read is not a result at all.

## References

huggingface/transformers#45621 (grouped products under expert parallelism), meta-pytorch/MSLK#158.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["upgrade-package"]
public_incidents = 4
frame = "experts"

tells: Tells = {
    "grouped-gemm": (STRONG, "rows of experts without tokens are not written"),
    "experts": (STRONG, "an expert without tokens computes nothing"),
    "memory-uninitialised": (STRONG, "rows that nobody wrote hold what was in memory"),
    "second-step": (HINT, "memory is clean at first"),
    "router": (-HINT, "the routing is another matter"),
    "gradient-first": (HINT, "products of the backward leave rows out too"),
    "hidden-loss": (HINT, "rows that nobody wrote may hold NaN"),
    "nonfinite-loss": (HINT, "rows that nobody wrote may hold NaN"),
    "nonfinite-gradient": (HINT, "rows that nobody wrote reach the gradient"),
}

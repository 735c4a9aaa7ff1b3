"""A kernel accessed memory that is not its own.

## What it means

An index was computed wrongly, most often in a fused or compiled kernel, or beyond 2^31 elements; seldom a failing card.

## How it is seen

In a log: `an illegal memory access was encountered`, `misaligned address`.
"""

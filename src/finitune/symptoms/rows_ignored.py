"""The program ignores samples or all their labels, and goes on.

## What it means

The markers that separate question and answer were not found, or truncation removed every answer: nothing is learned
from these samples.

## How it is seen

In a log: `tokenization mismatch` (FastChat, LLaVA), `Could not find response key` and its kin (TRL), or an epoch of
which no sample is left (transformers).
"""

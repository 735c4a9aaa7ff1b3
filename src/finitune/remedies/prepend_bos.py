"""Begin every sequence with a trained token, so that no untrained row stands at position 0.

## What it changes

The data: each sequence gets the model's own beginning-of-sequence token in front. The untrained row then stands at a
later position, where the first attention layer mixes in normal values; its gradient falls to that of a normal row
(measured: from 4e5 to 9). The row itself stays untrained.

## When it is safe

When the model saw the token in pre-training, and inference gets it too: otherwise the model is trained on one form
and used in another. Check that its own row is trained.

## References

Seed incident 000 (01-ai/Yi#285): Yi adds no such token by itself, so the chat marker stood first.
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy:
    return Remedy(patch={"add_bos_token": True})

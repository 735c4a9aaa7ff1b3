"""Let rows of attention that see no key give zeros instead of NaN.

## What it changes

Before the softmax, a row whose scores are all -inf is recognised, and its weights are zeros; all other rows keep their
bits. In a program of one's own that is a line: `weights = weights.masked_fill(scores.amax(-1, keepdim=True) ==
float("-inf"), 0.0)`. Under `finitune run --mode heal` it is done to the running modules.

## When it is safe

Where such rows are padding, whose output nothing reads. Where a real token sees no key the mask is wrong, and zeros
hide it.

## References

pytorch/pytorch#103749 (what the softmax of an empty row should be); `_safe_softmax` of torch 2.5, which the fused
attention of torch uses, does the same.
"""

from __future__ import annotations

from finitune.finding import Origin, Remedy

safety = "advice"


def propose(origin: Origin | None = None) -> Remedy | None:
    """Where real tokens see no key, the mask is wrong."""
    return None if origin is not None and origin.padding is False else Remedy()

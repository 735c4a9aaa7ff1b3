"""Compute attention with another kernel than the one that is wrong: torch's own, or plain mathematics.

## What it changes

The attention kernel. Plain mathematics (eager attention, or `sdpa_kernel(SDPBackend.MATH)` around
`scaled_dot_product_attention`) keeps the whole matrix of scores, so memory grows with the square of the length and
speed falls; what is computed is the same but for the last digits.

## When it is safe

Always. In a run under `finitune run --mode heal` the kernel is changed while the run goes on, where the captured step
is finite with the other kernel and not with its own on copies of queries, keys and values.

## References

hiyouga/LLaMA-Factory#8088 (NaN gradients end with flash attention switched off), huggingface/transformers#31997
(Gemma 2, eager attention is the way around), pytorch/pytorch#139298.
"""

from __future__ import annotations

from finitune.facts import Attention, Training
from finitune.finding import Remedy

safety = "safe"


def propose(attention: Attention | None = None, training: Training | None = None) -> Remedy | None:
    """Nothing where attention is plain mathematics as it is."""
    if attention is not None and attention.implementation == "eager":
        return None
    if attention is None and training is None:
        return Remedy()  # nobody saw the setting
    return Remedy(patch={"attn_implementation": "eager"})

"""Keep packed documents apart: a kernel that takes their lengths, or no packing.

## What it changes

The attention kernel (FlashAttention with variable lengths), or how rows are filled. Without packing more of each row
is padding, so an epoch takes longer.

## When it is safe

Always; FlashAttention needs a card from Ampere on and half precision.

## References

axolotl-ai-cloud/axolotl#3796, huggingface/trl#3910.
"""

from __future__ import annotations

from finitune.facts import Batching, Hardware
from finitune.finding import Remedy

safety = "safe"


def propose(hardware: Hardware | None = None, batching: Batching | None = None) -> Remedy:
    """Every card that computes in bfloat16 has FlashAttention."""
    if batching is None:
        return Remedy()  # nobody saw the setting
    old = hardware is not None and not hardware.bfloat16
    patch = {"packing": False} if old else {"attn_implementation": "flash_attention_2"}
    return Remedy(patch=patch)

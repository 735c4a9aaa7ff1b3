"""Use another kernel than cuDNN's for scaled dot product attention.

## What it changes

The attention kernel: FlashAttention, the memory-efficient one or plain mathematics, chosen by PyTorch. Speed changes
by some per cent, results in the last digits.

## When it is safe

Always. In a program of one's own the call is `torch.backends.cuda.enable_cudnn_sdp(False)` before the model is
built; with transformers `attn_implementation` names another kernel.

## References

pytorch/pytorch#139298 (the call ended a loss explosion), huggingface/diffusers#9768, pytorch/pytorch#196678.
"""

from __future__ import annotations

from finitune.facts import Attention, Training
from finitune.finding import Remedy

safety = "safe"


def propose(attention: Attention | None = None, training: Training | None = None) -> Remedy | None:
    if attention is not None and attention.implementation != "sdpa":
        return None
    if attention is None and training is None:
        return Remedy()  # nobody saw the setting
    return Remedy(patch={"attn_implementation": "flash_attention_2"})

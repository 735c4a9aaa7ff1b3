"""Compute in float32 throughout, where the card has no bfloat16 and the model leaves float16.

## What it changes

The dtype of the forward and backward pass. float32 reaches 3e38 with 24 bits of precision: no activation overflows, no
loss scaler is needed, nothing rounds away. Activations take twice the memory, and a V100 computes at an eighth of its
16-bit speed; gradient checkpointing and a smaller micro-batch make room.

## When it is safe

Always, for the numbers. It is not for memory and time, so it is never taken without being read.

## References

huggingface/transformers#5651 (T5 in float32 where float16 gives NaN); NVIDIA, V100 data sheet.
"""

from __future__ import annotations

from finitune.facts import Hardware, Precision, Quantization, Training
from finitune.finding import Origin, Remedy, Where

safety = "unsafe"
arm = "float32"


def propose(
    precision: Precision | None = None,
    hardware: Hardware | None = None,
    origin: Origin | None = None,
    where: Where | None = None,
    training: Training | None = None,
    quantization: Quantization | None = None,
) -> Remedy | None:
    """For a card that has nothing else, where no module is named that alone would do."""
    if precision is None or hardware is None or hardware.bfloat16:
        return None
    if origin is not None or (where is not None and (where.module or where.tensor)):
        return None
    framework = training.framework if training is not None else None
    if framework == "llama-factory" and quantization is not None and quantization.bits == 4:  # 16 bits alone
        return None
    if framework == "torchtune":  # it has no switches, and one dtype for all
        return Remedy(patch={"dtype": "float32"})
    sections = (precision.source or "").endswith(".enabled")
    return Remedy(patch={"bf16.enabled": False, "fp16.enabled": False} if sections else {"bf16": False, "fp16": False})

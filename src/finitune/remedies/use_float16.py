"""Compute in float16 with a dynamic loss scale, on a card that has no bfloat16 units.

## What it changes

The dtype of the forward and backward pass, and a loss scaler that keeps small gradients in range. V100, T4 and
RTX 20 multiply float16 at full speed.

## When it is safe

When the model stays below 65504 in the forward: a model that was pre-trained in bfloat16 may not. Run a few steps and
watch the loss scale: above 2**10 is healthy, a fall towards 1 means that the model needs float32 in some modules or
throughout. Trained weights stay in float32.

## References

NVIDIA, Train with Mixed Precision; QwenLM/Qwen3#910 (a model that does need more than float16).
"""

from __future__ import annotations

from finitune.facts import Hardware, Model, Precision, Training
from finitune.finding import Remedy
from finitune.naming import WIDE

safety = "unsafe"


def propose(
    precision: Precision | None = None,
    hardware: Hardware | None = None,
    model: Model | None = None,
    training: Training | None = None,
) -> Remedy | None:
    """None for a family that overflows in float16, and where weights would be float16: the way into the next fault."""
    if training is not None and training.framework == "torchtune":  # one dtype for all, and no loss scaler
        return None
    if (hardware is not None and hardware.bfloat16) or ((model and model.family) or "").startswith(WIDE):
        return None
    if (
        training is not None
        and training.framework == "openrlhf"
        and ((precision and precision.source) or "").endswith(": bf16")
    ):  # before 0.9.2 it has no other half precision
        return Remedy(text="set param_dtype = fp16 in place of bf16, which OpenRLHF 0.9.2 and later take")
    sections = precision is not None and (precision.source or "").endswith(".enabled")
    patch = {"bf16.enabled": False, "fp16.enabled": True} if sections else {"bf16": False, "fp16": True}
    return Remedy(patch=patch)

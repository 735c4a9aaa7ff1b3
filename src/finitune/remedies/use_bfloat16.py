"""Compute in bfloat16, which has the range of float32.

## What it changes

The dtype of the forward and backward pass. bfloat16 reaches 3e38 where float16 ends at 65504, so activations do not
overflow and no loss scaler is needed. It keeps 8 bits of precision instead of 11; memory and speed stay as they are.

## When it is safe

On cards that compute in bfloat16 (compute capability 8.0: A100, L4, RTX 30 and later); V100 and T4 only emulate it.
Weights that are trained must stay in float32, or small updates round away. It does not cure defects of a kernel or a
communication race.

## References

QwenLM/Qwen3#670, hiyouga/LLaMA-Factory#950, Lightning-AI/litgpt#150.
"""

from __future__ import annotations

from typing import Any

from finitune.facts import Hardware, Precision
from finitune.finding import Remedy

safety = "safe"


def propose(precision: Precision | None = None, hardware: Hardware | None = None) -> Remedy | None:
    if hardware is not None and not hardware.bfloat16:
        return None
    if precision is None or precision.compute is None:
        return Remedy()  # nobody saw the setting
    return Remedy(patch=_patch(precision))


def _patch(precision: Precision | None) -> dict[str, Any]:
    """In the spelling of the file that asked for float16: DeepSpeed has sections, trainers have flags."""
    if precision is not None and (precision.source or "").endswith(".enabled"):
        return {"fp16.enabled": False, "bf16.enabled": True}
    return {"fp16": False, "bf16": True}

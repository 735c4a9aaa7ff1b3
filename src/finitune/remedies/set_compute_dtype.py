"""Say in which dtype the products of quantised weights are computed, instead of taking the default.

## What it changes

One setting: bfloat16 on cards that have it, else float32. The stored 4-bit or 8-bit weights stay as they are.

## When it is safe

Always; float32 is slower and uses more memory for activations. An adapter that was trained under another compute
dtype should be evaluated again.

## References

bitsandbytes-foundation/bitsandbytes#1572; artidoro/qlora#24 (the author recommends float32 where bfloat16 is missing
and calls float16 not always stable).
"""

from __future__ import annotations

from collections.abc import Mapping

from finitune.facts import Hardware, Quantization, Training
from finitune.finding import Remedy

safety = "safe"
SPOKEN = {"quantisation", "quantised", "int8", "int8-weights", "nonfinite-parameter"}
"""Observations that weights are quantised; the last is what Ludwig says, which is used for little else."""


def propose(
    hardware: Hardware | None = None,
    quantization: Quantization | None = None,
    observations: Mapping[str, str] | None = None,
    training: Training | None = None,
) -> Remedy | None:
    if quantization is None and not SPOKEN & (observations or {}).keys():
        return None
    dtype = "float32" if hardware is not None and not hardware.bfloat16 else "bfloat16"
    four = quantization is not None and quantization.bits == 4
    if four and dtype == "float32" and training is not None and training.framework == "llama-factory":
        return Remedy(text="take a card with bfloat16: LLaMA-Factory computes 4-bit weights in 16 bits alone")
    key = "dtype" if quantization is not None and quantization.bits == 8 else "bnb_4bit_compute_dtype"
    return Remedy(patch={key: dtype})

"""Load the frozen weights in 16 or 4 bits instead of 8.

## What it changes

How the frozen base weights are stored. 16 bits need twice the memory of 8; 4 bits with a compute dtype that the card
has need half.

## When it is safe

Always: nothing that is trained changes. 4 bits cost a little quality.

## References

tloen/alpaca-lora#265 (V100: healthy without int8).
"""

from __future__ import annotations

from finitune.facts import Quantization
from finitune.finding import Remedy

safety = "safe"


def propose(quantization: Quantization | None = None) -> Remedy | None:
    if quantization is None or quantization.bits != 8:
        return None
    return Remedy(patch={"load_in_8bit": False})

"""Weights are loaded in 8 bits on a card that has no 8-bit matrix units.

## What happens

The 8-bit kernels of bitsandbytes are made for compute capability 7.5 and above. On older cards (P100, V100) a slower
path, or in older releases a wrong one, is taken: the evaluation loss is NaN, or the training loss is huge at first and
then 0, whatever the learning rate.

## How to tell

`load_in_8bit` on a P100 or V100. A smaller model may work and a larger one fail. 4-bit or 16-bit loading works.

## How to prove

Load the same model in 16 bits and run the same batch: it is finite.

## What to do

Load in 16 bits, or in 4 bits with compute dtype float32 (keep-sixteen-bits).

## What does not help

A lower learning rate: the forward is wrong. Grouping by length or fewer target modules changes when it happens, not
whether it does.

## References

tloen/alpaca-lora#265 (every reporter on V100, healthy without int8), tloen/alpaca-lora#335; bitsandbytes documentation
(hardware requirements of LLM.int8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Hardware, Quantization
from finitune.finding import Evidence, Finding, Where

WITHOUT_INT8 = re.compile(r"\b(P40|P100|V100|GTX 10\d\d)\b")
"""Compute capability below 7.5."""

remedies = ["keep-sixteen-bits"]
public_incidents = 6
foresees = "quantisation"

tells: Tells = {
    "int8-weights": (STRONG, "the 8-bit kernel depends on the card"),
    "no-bfloat16-card": (HINT, "the card has no int8 units, or others"),
    "other-card-works": (STRONG, "another card has other kernels, and is healthy"),
    "new-card": (HINT, "older kernels do not know the card"),
    "computes-bfloat16": (-HINT, "cards that have bfloat16 have int8 units"),
    "hidden-loss": (HINT, "the first product is NaN already, which is printed as 0"),
    "from-the-start": (HINT, "no update is needed for it"),
    "no-word-of-quantisation": (-STRONG, "there is no quantised product"),
    "midway": (-HINT, "the first product would show it"),
    "sudden": (-STRONG, "the first product would show it"),
}


def foresee(hardware: Hardware, quantization: Quantization) -> Iterator[Finding]:
    if not _unsupported(quantization, hardware):
        return
    yield Finding(
        severity="warning",  # newer releases have a slow path for these cards that is correct
        message=f"8-bit weights on {hardware.name}, which has no 8-bit matrix units: NaN losses are on record",
        where=Where.said(quantization.source),
        evidence={"bits": quantization.bits, "hardware": hardware.name, "needs_compute_capability": 7.5},
    )


def weigh(quantization: Quantization, hardware: Hardware) -> Iterator[Evidence]:
    if quantization.bits is None:
        return
    if _unsupported(quantization, hardware):
        yield evidence("quantisation", DECISIVE, f"8-bit weights on {hardware.name} are on record for it")
    else:
        yield evidence("quantisation", -DECISIVE, f"{hardware.name} supports {quantization.bits}-bit weights")


def _unsupported(quantization: Quantization, hardware: Hardware) -> bool:
    int8 = quantization.bits == 8 and quantization.kind in (None, "int8")
    return int8 and bool(WITHOUT_INT8.search(hardware.name))

"""bfloat16 is asked of a card that has no units for it.

## What happens

Cards before compute capability 8.0 (P100, V100, T4, RTX 20) multiply float16 in hardware and bfloat16 not at all.
Some releases of PyTorch still answer True to "is bfloat16 supported", because they emulate it through float32: the
run starts and is many times slower. Others answer False and the trainer refuses. Fused kernels (FlashAttention,
Triton) fail to compile, or are silently replaced.

## How to tell

The compute capability is below 8.0 and the effective dtype is bfloat16. The time per step is far above that of
float16 with the same batch.

## How to prove

Time one step in float16 and one in bfloat16. A card with bfloat16 units takes the same time for both.

## What to do

Compute in float16 with a dynamic loss scale (use-float16), or in float32 where the model overflows float16, or take a
card from Ampere on.

## What does not help

Asking the framework whether bfloat16 is supported: the answer counts emulation. Turning off fused kernels only.

## References

Incident taxonomy (two public incidents); NVIDIA, CUDA C++ Programming Guide, table of arithmetic throughput
(bfloat16 from compute capability 8.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Hardware, Precision
from finitune.finding import Evidence, Finding, Where

remedies = ["use-float16", "use-float32"]
public_incidents = 2
foresees = "card"

tells: Tells = {
    "no-bfloat16-card": (STRONG, "the card has no bfloat16 units"),
    "computes-bfloat16": (HINT, "the run asks for bfloat16"),
    "computes-float16": (-STRONG, "float16 is native on such cards"),
    "bfloat16-emulated": (DECISIVE, "the card is said to emulate it"),
}


def foresee(precision: Precision, hardware: Hardware) -> Iterator[Finding]:
    if precision.compute != "bfloat16" or hardware.bfloat16 or precision.cpu:
        return
    # A warning: where nothing refuses, the run is slow, and its numbers are right.
    yield Finding(
        severity="warning",
        message=f"the run computes in bfloat16, and {hardware.name} has no units for it: it is refused, or emulated "
        "through float32 at a fraction of the speed",
        where=Where.said(precision.source),
        evidence={"compute": precision.compute, "hardware": hardware.name, "bfloat16": hardware.bfloat16},
    )


def weigh(precision: Precision, hardware: Hardware, symptoms: set[str]) -> Iterator[Evidence]:
    if hardware.bfloat16 or precision.compute not in (None, "bfloat16"):
        yield evidence("card", -DECISIVE, f"{hardware.name} computes in {precision.compute or 'bfloat16'} by itself")
    elif precision.compute is not None:
        yield evidence("card", STRONG, f"{hardware.name} emulates bfloat16")
        if any(symptom.startswith("nonfinite") for symptom in symptoms):
            yield evidence("loss", -STRONG, "but emulation is slow, not wrong")

"""The device computes something else than the CPU does: a backend with wrong kernels.

## What happens

PyTorch runs on more than NVIDIA cards, and not every operation of every backend is tested as well. On Apple's MPS and
on consumer cards under ROCm single operations have given NaN, stale memory or wrong numbers, with some shapes, dtypes
or layouts and not with others: a loss that is NaN from block 0 on, or one that falls where it should not.

## How to tell

Every model fails, or one operation does at one size, on this device only. The same batch is healthy on the CPU. Another
release of the backend behaves differently.

## How to prove

Run one batch forward and backward on the device and on the CPU in float32, and compare loss and gradients: they agree
to three digits or better. The first module whose output differs holds the operation.

## What to do

Try another release of the backend (upgrade-package), another kernel (eager attention, no `torch.compile`), or the CPU
for that operation (change-settings).

## What does not help

A lower learning rate, clipping, other data: the same numbers go in and others come out. float16 or bfloat16 at random:
each has its own defects there.

## References

pytorch/pytorch#137964 (MPS, silent), #107294 (MPS, by block size), ROCm/TheRock#2662 (gfx110X nightlies),
unslothai/unsloth#3588 (FlashAttention in bfloat16 on gfx1151), pytorch/pytorch#109517 (memory-efficient attention and
masks), hiyouga/LLaMA-Factory#8088.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.evidence import HINT, STRONG, Tells, evidence
from finitune.facts import Hardware
from finitune.finding import Evidence, Finding, Where

LESS_TESTED = re.compile(r"MPS|ROCm|gfx|Radeon", re.IGNORECASE)
"""Not the data-centre cards of AMD, on which large models are trained every day."""

remedies = ["upgrade-package"]
public_incidents = 13
foresees = "card"

tells: Tells = {
    "less-tested-device": (STRONG, "single operations have given wrong numbers on this device"),
    "climbed": (-STRONG, "a wrong kernel fails at once"),
    "divergence": (-STRONG, "a wrong kernel fails at once"),
    "cpu-works": (STRONG, "the CPU computes the same with other kernels"),
    "kernel-level": (HINT, "one operation of the library is reported by itself"),
    "mask-sentinel": (HINT, "memory-efficient attention has treated such masks wrongly"),
    "scaled-dot-product": (HINT, "it chooses among several kernels"),
    "other-card-works": (HINT, "another device has other kernels, and is healthy"),
    "computes-float16": (-HINT, "wrong kernels occur in every dtype, overflow in float16"),
    "illegal-access": (STRONG, "a kernel reads outside its arrays"),
}


def foresee(hardware: Hardware) -> Iterator[Finding]:
    if not LESS_TESTED.search(hardware.name):
        return
    yield Finding(
        severity="info",  # most runs there are healthy; one batch tells
        message=f"on {hardware.name} single operations have given NaN or wrong numbers: compare the loss of one batch "
        "with the CPU before a long run",
        where=Where(),
        evidence={"hardware": hardware.name},
    )


def weigh(hardware: Hardware, repeats: bool | None = None) -> Iterator[Evidence]:
    if not LESS_TESTED.search(hardware.name):
        yield evidence("card", -STRONG, f"{hardware.name} is what everybody trains on")
        return
    if repeats is False:
        yield evidence("repetition", STRONG, f"on {hardware.name} the step comes out differently when run again")

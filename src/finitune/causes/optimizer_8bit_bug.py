"""The 8-bit optimizer of bitsandbytes 0.36.0 to 0.41.0 quantises its state with a wrong map.

## What happens

One wrongly indented block built the table of the 256 values that 8-bit state can take. Moments are rounded to values
that are not near them, updates have the wrong size, and adapters come out broken or NaN after a few steps, in every
compute dtype. It was in five months of releases.

## How to tell

An optimizer with 8-bit state and a bitsandbytes release in that range. The same run with plain AdamW is healthy.
Gradients and loss are finite, and the weights are wrong after the step.

## How to prove

Take the same step with AdamW in 32 bits: the weights stay finite.

## What to do

Install bitsandbytes 0.41.1 or later (upgrade-package), or use an optimizer with 32-bit state.

## What does not help

bfloat16 instead of float16: the state is 8-bit in both. A lower learning rate: the error is in proportion to the step.

## References

bitsandbytes-foundation/bitsandbytes#227 (the block, fixed in 0.41.1) and #152, kohya-ss/sd-scripts#523 (bfloat16 was
tried, in vain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Optimizer
from finitune.finding import Evidence, Finding, Where

AFFECTED = SpecifierSet(">=0.36.0,<0.41.1")
FIXED_IN = "0.41.1"

remedies = ["upgrade-package"]
public_incidents = 3
foresees = "eight bit adam"

tells: Tells = {
    "eight-bit-adam": (STRONG, "bitsandbytes 0.36 to 0.41.0 quantised the moments wrongly"),
    "adamw-works": (HINT, "plain AdamW, in full precision, is healthy"),
    "plain-optimizer-works": (HINT, "another optimizer is healthy"),
    "second-step": (HINT, "the first update ruins the weights"),
    "packed": (-HINT, "packing is the likelier reason"),
    "learning-rates-differ": (-HINT, "too high a rate of one group is the likelier reason"),
    "divergence": (STRONG, "updates with wrong moments make the loss climb"),
}


def foresee(optimizer: Optimizer, versions: Mapping[str, str] | None = None) -> Iterator[Finding | Needs]:
    version = (versions or {}).get("bitsandbytes")
    if version is None and _eight_bits(optimizer):
        yield Needs("versions.bitsandbytes")
    if not _affected(optimizer, version):
        return
    # A warning: many runs of those months did converge, with a worse optimizer than they asked for.
    yield Finding(
        severity="warning",
        message=f"bitsandbytes {version} builds the table of {optimizer.name}'s 8-bit state wrongly; fixed in "
        f"{FIXED_IN}",
        where=Where(file=optimizer.source, key="optim"),
        evidence={
            "package": "bitsandbytes", "version": version, "affected": str(AFFECTED), "fixed_in": FIXED_IN,
            "optimizer": optimizer.name,
        },
    )  # fmt: skip


def weigh(optimizer: Optimizer, versions: Mapping[str, str]) -> Iterator[Evidence]:
    version = versions.get("bitsandbytes")
    if optimizer.name is None or (version is None and _eight_bits(optimizer)):
        return
    if _affected(optimizer, version):
        yield evidence(
            "eight bit adam", DECISIVE, f"{optimizer.name} with bitsandbytes {version}, whose 8-bit map is wrong"
        )
    else:
        yield evidence("eight bit adam", -DECISIVE, f"{optimizer.name} with bitsandbytes {version} is not concerned")


def _eight_bits(optimizer: Optimizer) -> bool:
    return "8bit" in (optimizer.name or "").lower().replace("_bit", "bit")


def _affected(optimizer: Optimizer, version: str | None) -> bool:
    return _eight_bits(optimizer) and version is not None and AFFECTED.contains(version, prereleases=True)

"""Nothing looks at the gradients before they are used, so one bad batch ends the run.

## What happens

Float16 has a loss scaler, which looks at every gradient and skips the step when one is not finite. bfloat16 needs no
scaler, and so loses the look. One NaN in one gradient then reaches every weight and all optimizer state within one
step (with clipping) or two, and the checkpoint that is written next is lost too, with exit status 0. In DeepSpeed the
look came back for bfloat16: ZeRO-1 and 2 by default from 0.19.3 (`bf16.check_grad_overflow`), ZeRO-3 from 0.19.8.

## How to tell

bfloat16 under DeepSpeed, the release and the ZeRO stage; `check_grad_overflow` false. In the log: loss 0.0 with
gradient norm exactly 1.0 or 1.414, which is NaN twice disguised.

## How to prove

Plant one NaN (`finitune run --inject nan:MODULE:STEP`) and look at the weights two steps later.

## What to do

Switch the check on (check-gradients), or install a DeepSpeed that has it (upgrade-package), or train under
`finitune run`, which discards such a step in every framework.

## What does not help

Clipping: the norm of a NaN gradient is NaN. Replacing NaN by zero in the gradient: a wrong update instead of none.

## References

Measured in this project with one element of one gradient (27 stacks, 8 faults): DeepSpeed 0.16.9 to 0.19.2 poisoned in
ZeRO 1 and 2, 0.16.9 to 0.19.7 in ZeRO 3; deepspeedai/DeepSpeed#6976 (the key, 0.17.1), #8035 (its default, 0.19.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Parallel, Precision
from finitune.finding import Evidence, Finding, Where

UNCHECKED = {1: SpecifierSet("<0.19.3"), 2: SpecifierSet("<0.19.3"), 3: SpecifierSet("<0.19.8")}
"""ZeRO stage -> releases that use bfloat16 gradients unseen by default."""
READS_KEY = SpecifierSet(">=0.17.1")
FIXED_IN = {1: "0.19.3", 2: "0.19.3", 3: "0.19.8"}

remedies = ["check-gradients", "upgrade-package"]
public_incidents = 1
foresees = "unguarded"

tells: Tells = {
    "computes-bfloat16": (HINT, "without a loss scaler nobody looks at the gradients"),
    "late": (HINT, "one bad batch ends the run"),
    "tiny-learning-rate": (HINT, "an update of NaN ruins the weights at any rate"),
    "unguarded": (STRONG, "nothing skips a bad step"),
    "lower-learning-rate-fails": (HINT, "an update of NaN ruins the weights at any rate"),
    "sentinel-norm": (DECISIVE, "an update was taken although the gradient norm was not finite"),
    "updates-taken": (HINT, "the steps were taken, and not skipped"),
    "probability-tensor": (HINT, "training had made the weights NaN, unnoticed"),
    "nonfinite-parameter": (STRONG, "an update with a bad gradient made the weights NaN"),
}


def foresee(
    precision: Precision, parallel: Parallel, versions: Mapping[str, str] | None = None
) -> Iterator[Finding | Needs]:
    stage, version = parallel.zero_stage or 0, (versions or {}).get("deepspeed")
    if not _unchecked(precision, parallel, versions or {}):
        engine = precision.compute == "bfloat16" and parallel.kind == "deepspeed"
        if engine and version is None and (parallel.zero_stage is None or stage in UNCHECKED):
            yield Needs("versions.deepspeed")
        elif engine and parallel.zero_stage is None:
            yield Needs("parallel.zero_stage")
        return
    switched_off = parallel.check_grad_overflow is False and stage != 3
    why = "bf16.check_grad_overflow is false" if switched_off else f"DeepSpeed {version} with ZeRO-{stage} has no check"
    yield Finding(
        # A warning for a guard that was switched off; a release without one is worth knowing, and trains well.
        severity="warning" if switched_off else "info",
        message=f"{why}: one non-finite bfloat16 gradient reaches every weight, and the next checkpoint",
        where=Where(file=parallel.source, key="bf16.check_grad_overflow"),
        evidence={"package": "deepspeed", "version": version, "fixed_in": FIXED_IN[stage], "zero_stage": stage},
    )


def weigh(
    precision: Precision, parallel: Parallel, versions: Mapping[str, str], symptoms: set[str]
) -> Iterator[Evidence]:
    decides = (precision.compute, parallel.kind, parallel.zero_stage, versions.get("deepspeed"))
    settled = None not in decides and (parallel.zero_stage == 3 or parallel.check_grad_overflow is not None)
    if not _unchecked(precision, parallel, versions) and not settled and _may_be(precision, parallel):
        return
    if not _unchecked(precision, parallel, versions):
        yield evidence("unguarded", -DECISIVE, "the engine skips a step with a non-finite gradient")
        return
    if symptoms:
        yield evidence("loss", -STRONG, "nothing looks at the gradients, but that makes no bad number by itself")
    else:
        yield evidence("unguarded", STRONG, "nothing looks at the gradients before they are used")


def _may_be(precision: Precision, parallel: Parallel) -> bool:
    known = precision.compute in (None, "bfloat16") and parallel.kind in (None, "deepspeed")
    return known and (parallel.zero_stage is None or parallel.zero_stage in UNCHECKED)


def _unchecked(precision: Precision, parallel: Parallel, versions: Mapping[str, str]) -> bool:
    stage, version = parallel.zero_stage, versions.get("deepspeed")
    if precision.compute != "bfloat16" or parallel.kind != "deepspeed" or stage not in UNCHECKED:
        return False
    if stage != 3 and parallel.check_grad_overflow is False:
        return True
    if version is None or not UNCHECKED[stage].contains(version, prereleases=True):
        return False
    read = stage != 3 and READS_KEY.contains(version, prereleases=True)
    return not (read and parallel.check_grad_overflow)

"""ZeRO-1 or ZeRO-2 fills the gradient buffer again while it is still being sent.

## What happens

With `overlap_comm` DeepSpeed reduces a bucket of gradients on a second stream while the backward pass goes on. Before
0.14.3 the default stream did not wait for it, so the buffer was overwritten before communication had ended; later
releases fixed further gaps (0.17.5, 0.18.5, 0.19.0, 0.19.3). Ranks then average wrong numbers, and in bfloat16
nobody looks at them: the first sign is a NaN gradient norm, or exactly 1.0 or 1.414, the square root of the number of
parameter groups.

## How to tell

bfloat16, a sane learning rate, ZeRO-1 or ZeRO-2 with `overlap_comm` true; small buckets or several nodes make it
likelier. ZeRO-3 with the same data is healthy. The bad step does not repeat, and two runs of one seed differ.

## How to prove

Run the captured step again on one process: it is finite. Average what the ranks computed by one all-reduce that is
waited for: it is not what the optimizer got (finitune does both, in the first steps and now and then). Train with
`overlap_comm` false: the fault is gone. `TORCH_CUDA_SANITIZER=1` names the two streams.

## What to do

Set `overlap_comm` to false (disable-overlap-comm), or install DeepSpeed 0.17.5 or later (upgrade-package).

## What does not help

float16 instead of bfloat16: it skips the bad steps and keeps the wrong ones. A lower learning rate. Larger buckets
make it rarer. It is not the cause of every NaN under ZeRO-2: two public reports persist without overlap.

## References

deepspeedai/DeepSpeed#5545 (found with the sanitizer) and #5606 (first in 0.14.3), #5347, #7171, #7371, #7805, #7965,
#8080; LaVi-Lab/VG-LLM#21, hiyouga/LLaMA-Factory#4850; counter-examples deepspeedai/DeepSpeed#6351 and #5241.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, TRAINING_ONLY, Tells, evidence
from finitune.facts import Parallel, Precision
from finitune.finding import Evidence, Finding, Severity, Where

# The bucketed all-reduce of 0.12.4 made the missing wait visible (bisected in DeepSpeed#5242); 0.14.3 added it.
RACE = SpecifierSet(">=0.12.4,<0.14.3")
# The wait is missing here too, with fewer reports; from 0.14.3 to 0.17.4 the double buffer was swapped unguarded.
WEAKER = SpecifierSet("<0.17.5")
SMALL_BUCKET = 2e8
"""Elements; a run that failed with 5e7 was finite with 2e8 (DeepSpeed#5347)."""

remedies = ["disable-overlap-comm", "upgrade-package"]
public_incidents = 12
frame = "deepspeed"
foresees = "overlap"

tells: Tells = {
    **TRAINING_ONLY,
    "nonfinite-gradient-check": (-STRONG, "a rank found it before anything was sent"),
    "deepspeed": (HINT, "the race is one of DeepSpeed's ZeRO"),
    "zero-loss-finite-gradient": (-STRONG, "a race spoils the gradient, not the loss alone"),
    "resized": (-HINT, "new embedding rows are the likelier reason"),
    "gradient-first": (STRONG, "the forward was finite, the reduced gradient was not"),
    "overlap-false": (-STRONG, "the reduction does not overlap with the backward"),
    "overlap-not-asked": (-DECISIVE, "the reduction does not overlap with the backward"),
    "computes-float16": (-HINT, "steps in float16 are checked for overflow"),
    "zero-3-works": (STRONG, "ZeRO-3 reduces in another way"),
    "zero-loss-zero-gradient": (-STRONG, "a race leaves no gradient of exactly 0"),
    "nonfinite-loss": (HINT, "weights after an update that nobody checked"),
    "computes-bfloat16": (HINT, "bfloat16 steps are not checked for overflow"),
    "nonfinite-parameter": (-DECISIVE, "Ludwig, which prints this, reduces without DeepSpeed here"),
    "updates-skipped": (-STRONG, "steps that a race spoils are taken, not skipped"),
    "no-deepspeed": (-DECISIVE, "gradients do not pass through DeepSpeed"),
    "nodes": (HINT, "a slower network makes the race likelier"),
    "pretrains": (-STRONG, "these frameworks reduce without DeepSpeed"),
    "ecc-error": (-STRONG, "the device itself reports a fault"),
    "overlap-fails": (STRONG, "without overlap it is healthy"),
    "no-overlap-works": (STRONG, "without overlap it is healthy"),
    "bucket": (HINT, "smaller buckets are sent more often"),
    "overlap-true": (STRONG, "a bucket is filled while it is being sent"),
    "nonfinite-gradient": (HINT, "the gradient norm shows it first"),
    "sentinel-norm": (STRONG, "DeepSpeed took the step although the norm was not finite"),
    "nonfinite-evaluation": (-DECISIVE, "evaluation reduces no gradients"),
    "zero-2": (STRONG, "ZeRO-2 sends gradients through shared buckets"),
    "zero-1": (STRONG, "ZeRO-1 sends gradients through shared buckets"),
    "float16-works": (HINT, "steps in float16 are checked for overflow"),
    "hidden-loss": (HINT, "weights after an update that nobody checked"),
    "updates-taken": (HINT, "the steps were taken, and not skipped"),
    "loss-scale-collapse": (-DECISIVE, "it does not depend on the loss scale"),
    "smaller-model-works": (HINT, "fewer buckets are on the way at once"),
    "sudden": (STRONG, "a race is lost at any time"),
    "zero-3": (-STRONG, "ZeRO-3 reduces in another way"),
    "zero-0": (-STRONG, "ZeRO-0 has no such bucket"),
    "late": (HINT, "a race is lost now and then"),
    "climbed": (-STRONG, "a race comes without a climb"),
    "loss-jumped": (-STRONG, "a race comes without a climb"),
    "no-word-of-deepspeed": (-DECISIVE, "the race is one of DeepSpeed's ZeRO"),
    "nan-passes": (-STRONG, "weights that are NaN stay NaN"),
    "first-step-lost": (-STRONG, "no gradient had been reduced yet"),
    "same-step": (-STRONG, "a race does not wait for one step"),
}


def foresee(
    precision: Precision, parallel: Parallel, versions: Mapping[str, str] | None = None
) -> Iterator[Finding | Needs]:
    version = (versions or {}).get("deepspeed")
    unknown = parallel.kind == "deepspeed" and parallel.zero_stage is None and parallel.overlap_comm is not False
    if not (_overlaps(parallel) or unknown) or (version and not WEAKER.contains(version, prereleases=True)):
        return
    if version is None or unknown:
        yield Needs("parallel.zero_stage" if version else "versions.deepspeed")
        return
    raced = RACE.contains(version, prereleases=True)
    small = parallel.reduce_bucket_size is not None and parallel.reduce_bucket_size < SMALL_BUCKET
    likelier = small or (parallel.nodes or 1) > 1
    # An error only where users bisected the fault; a warning where a condition of later reports holds as well.
    severity: Severity = "error" if raced else "warning" if likelier else "info"
    unseen = ", which nothing checks in bfloat16" if precision.compute == "bfloat16" else ""
    yield Finding(
        severity=severity,
        message=f"DeepSpeed {version} with ZeRO-{parallel.zero_stage} and overlap_comm can overwrite gradients while "
        f"they are sent{unseen}" + ("; small buckets or several nodes make it likelier" if likelier else ""),
        where=Where(file=parallel.source, key="zero_optimization.overlap_comm"),
        evidence={
            "package": "deepspeed", "version": version, "affected": str(RACE if raced else WEAKER),
            "fixed_in": "0.17.5", "zero_stage": parallel.zero_stage,
            "reduce_bucket_size": parallel.reduce_bucket_size, "nodes": parallel.nodes,
        },
    )  # fmt: skip


def weigh(
    parallel: Parallel | None = None,
    versions: Mapping[str, str] | None = None,
    repeats: bool | None = None,
    incident: Mapping[str, Any] | None = None,
) -> Iterator[Evidence]:
    seen = (incident or {}).get("reduction")
    if seen:
        yield from _compared(seen)
    if parallel is None or (seen and parallel.kind != "deepspeed"):
        return
    if not _overlaps(parallel) and _may_overlap(parallel):
        return
    if not _overlaps(parallel):
        yield evidence("overlap", -DECISIVE, "gradients are not reduced while the backward pass runs")
        return
    if repeats:
        yield evidence("repetition", -DECISIVE, "the step is bad each time it is run")
        return
    yield evidence("overlap", STRONG, f"ZeRO-{parallel.zero_stage} overlaps the reduction with the backward pass")
    version = (versions or {}).get("deepspeed")
    if version and RACE.contains(version, prereleases=True):
        yield evidence("DeepSpeed release", STRONG, f"DeepSpeed {version} does not wait for the reduction")
    elif version and not WEAKER.contains(version, prereleases=True):
        yield evidence("DeepSpeed release", -STRONG, f"DeepSpeed {version} waits for the reduction")
    if repeats is False:
        yield evidence("repetition", STRONG, "the step is finite when it is run again")


def _compared(seen: Mapping[str, Any]) -> Iterator[Evidence]:
    off = f"an independent all-reduce of the same gradients differs by up to {seen['worst']:.0%}"
    if seen.get("repeats"):
        yield evidence("reduction", DECISIVE, f"what a rank computes is the same bit for bit when run again; {off}")
    elif seen.get("repeats") is None:
        yield evidence("reduction", DECISIVE, off)
    else:
        yield evidence("reduction", STRONG, f"{off}, but what a rank computes also differs from run to run")


def _may_overlap(parallel: Parallel) -> bool:
    """Nothing that is known speaks against it."""
    known = parallel.kind in (None, "deepspeed") and parallel.zero_stage in (None, 1, 2)
    return known and parallel.overlap_comm is not False


def _overlaps(parallel: Parallel) -> bool:
    return parallel.kind == "deepspeed" and parallel.zero_stage in (1, 2) and parallel.overlap_comm is True

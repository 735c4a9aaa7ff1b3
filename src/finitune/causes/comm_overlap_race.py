"""ZeRO-1 or ZeRO-2 fills the gradient buffer again while it is still being sent.

## What happens

With `overlap_comm` DeepSpeed reduces a bucket of gradients on a second stream while the backward pass goes on. Before
0.14.3 the default stream did not wait for it, so the buffer was overwritten before communication had ended; later
releases mended further gaps (0.17.5, 0.18.5, 0.19.0, 0.19.3). Ranks then average wrong numbers, and in bfloat16
nobody looks at them: the first sign is a NaN gradient norm, or exactly 1.0 or 1.414, the square root of the number of
parameter groups.

## How to tell

bfloat16, a sane learning rate, ZeRO-1 or ZeRO-2 with `overlap_comm` true; small buckets or several nodes make it
likelier. ZeRO-3 with the same data is sound. The bad step does not repeat, and two runs of one seed differ.

## How to prove

Run the captured step again on one process: it is sound. Average what the ranks computed by one all-reduce that is
waited for: it is not what the optimizer got (finitune does both, in the first steps and now and then). Train with
`overlap_comm` false: the fault is gone. `TORCH_CUDA_SANITIZER=1` names the two streams.

## What to do

Set `overlap_comm` to false (disable-overlap-comm), or install a release in which it is mended (upgrade-package).

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
from finitune.facts import Parallel, Precision
from finitune.finding import Evidence, Finding, Severity, Where

# The bucketed all-reduce of 0.12.4 made the missing wait visible (bisected in DeepSpeed#5242); 0.14.3 added it.
RACE = SpecifierSet(">=0.12.4,<0.14.3")
# The wait is missing here too, with fewer reports; from 0.14.3 to 0.17.4 the double buffer was swapped unguarded.
WEAKER = SpecifierSet("<0.17.5")
SMALL_BUCKET = 2e8
"""Elements; a run that failed with 5e7 was sound with 2e8 (DeepSpeed#5347)."""

remedies = ["disable-overlap-comm", "upgrade-package"]
public_incidents = 12

tells = {
    "nonfinite-gradient-check": (-2.0, "a rank saw it before anything was sent"),
    "deepspeed": (1.0, "needs DeepSpeed"),
    "zero-loss-finite-gradient": (-3.0, "an overflow spoils the gradient too"),
    "resized": (-1.5, "rows explain more"),
    "gradient-first": (2.0, "the forward was sound, the backward was not"),
    "overlap-false": (-4.0, "nothing overlaps"),
    "overlap-not-asked": (-8.0, "nothing overlaps"),
    "computes-float16": (-1.5, "float16 steps are checked for overflow"),
    "zero-3-sound": (2.0, "partitions otherwise"),
    "zero-loss-zero-gradient": (-4.0, "a race leaves no gradient of 0"),
    "kernel-level serving": (-3.0, "no DeepSpeed"),
    "loss-not-finite": (1.0, "weights after an update nobody checked"),
    "computes-bfloat16": (1.5, "nobody checks it"),
    "nonfinite-parameter": (-5.0, "Ludwig reduces without DeepSpeed"),
    "rate-frozen": (-3.0, "the bad steps are taken"),
    "no-deepspeed": (-6.0, "gradients do not pass through DeepSpeed"),
    "nodes several-nodes": (1.0, "a slower network"),
    "pretrains": (-3.0, "these frameworks reduce without DeepSpeed"),
    "ecc-error": (-2.0, "the device reports another"),
    "overlap-bad no-overlap-sound": (3.0, "sound without overlap"),
    "bucket": (1.5, "smaller buckets are sent oftener"),
    "overlap-true": (2.0, "the buffer is filled while it is sent"),
    "gradient-nan": (1.0, "the first sign is the norm"),
    "overlapped": (4.0, "the buffer is filled while it is sent"),
    "sentinel-norm": (2.0, "the first sign is the norm"),
    "sentinel-norm-told": (2.0, "how a bad norm is printed"),
    "evaluation-only": (-6.0, "it is a matter of training"),
    "zero-2": (3.0, "gradients go through shared buckets"),
    "zero-1": (2.0, "gradients go through shared buckets"),
    "float16-sound": (0.5, "float16 steps are checked"),
    "hidden-loss": (2.0, "weights that nobody checked"),
    "rate-advancing": (1.5, "bad updates were applied"),
    "scale-fell": (-6.0, "no matter of the loss scale"),
    "smaller-model-sound": (1.0, "less is in flight"),
    "sudden": (3.0, "it strikes at any time"),
    "zero-3": (-2.0, "partitions otherwise"),
    "zero-0": (-4.0, "no such buffer"),
    "late": (0.5, "now and then"),
    "climbed loss-jumped": (-2.0, "it is at once"),
    "no-word-of-deepspeed": (-7.0, "it needs DeepSpeed"),
    "nan-passes first-step-lost same-step": (-3.0, "it strikes at any step"),
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
        yield Evidence(text="gradients are not reduced while the backward pass runs", bits=-6.0)
        return
    yield Evidence(text=f"ZeRO-{parallel.zero_stage} overlaps the reduction with the backward pass", bits=2.0)
    version = (versions or {}).get("deepspeed")
    if version and RACE.contains(version, prereleases=True):
        yield Evidence(text=f"DeepSpeed {version} does not wait for the reduction", bits=4.0)
    elif version and not WEAKER.contains(version, prereleases=True):
        yield Evidence(text=f"DeepSpeed {version} waits for the reduction", bits=-3.0)
    if repeats is not None:
        text = "the step is bad each time it is run" if repeats else "the step is sound when run again"
        yield Evidence(text=text, bits=-8.0 if repeats else 4.0)


def _compared(seen: Mapping[str, Any]) -> Iterator[Evidence]:
    off = f"an independent all-reduce of the same gradients differs by up to {seen['worst']:.0%}"
    if seen.get("repeats"):
        yield Evidence(text=f"what a rank computes is the same bit for bit when run again; {off}", bits=12.0)
    elif seen.get("repeats") is None:
        yield Evidence(text=off, bits=9.0)
    else:
        yield Evidence(text=f"{off}, but what a rank computes also differs from run to run", bits=4.0)


def _may_overlap(parallel: Parallel) -> bool:
    """Nothing that is known speaks against it."""
    known = parallel.kind in (None, "deepspeed") and parallel.zero_stage in (None, 1, 2)
    return known and parallel.overlap_comm is not False


def _overlaps(parallel: Parallel) -> bool:
    return parallel.kind == "deepspeed" and parallel.zero_stage in (1, 2) and parallel.overlap_comm is True

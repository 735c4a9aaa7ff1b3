"""A release of DeepSpeed with a known defect in its gradients.

## What happens

Some releases reduce, scale or average gradients wrongly in one mode and rightly in all others, so that the same
settings train under the release before and the release after. Three are pinned down: the bucketed all-reduce of ZeRO-1
and 2 from 0.12.4 on (loss 0, gradient norm exactly 1.0, later NaN); ZeRO-0 in bfloat16 before 0.18.6, where the
optimizer divides gradients by 65536 though the loss was never scaled; ZeRO-1 in bfloat16 with float32 accumulation
from 0.18.6 to 0.18.10, where the last micro-batch is left out of the average over ranks.

## How to tell

The version, the ZeRO stage and the dtype. The first loss is right. The loss changes by more than the learning rate
could change it. Curves depend on how one batch is divided into micro-batches.

## How to prove

Train the same steps under the release before: if it is finite, the release is the cause.

## What to do

Install DeepSpeed 0.19.0 or later (upgrade-package). For the bucketed all-reduce
`use_multi_rank_bucket_allreduce: false` is a workaround, for the float32 accumulation
`bf16.immediate_grad_update: true`.

## What does not help

A lower learning rate, clipping, other data: what is averaged is wrong whatever goes in. float16 where the model needs
bfloat16: its scaler skips some of the wrong steps and keeps the others.

## References

deepspeedai/DeepSpeed#5242 (bisected by users: 0.12.3 good, 0.12.4 bad) and #4695; #7837 and #7839 (first in 0.18.6);
#7985 (reproduced in 0.18.6 to 0.18.10, first in 0.19.0); shibing624/MedicalGPT#296.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Parallel, Precision
from finitune.finding import Evidence, Finding, Severity, Where

remedies = ["upgrade-package"]
public_incidents = 8
frame = "deepspeed"
foresees = "DeepSpeed release"

tells: Tells = {
    "deepspeed": (HINT, "the defects are in DeepSpeed itself"),
    "zero-0": (HINT, "ZeRO-0 is a path that few releases test"),
    "zero-1": (STRONG, "some releases accumulated bfloat16 gradients of ZeRO-1 wrongly"),
    "zero-2": (HINT, "some releases filled the shared buckets of ZeRO-2 wrongly"),
    "zero-3": (-STRONG, "no such defect of ZeRO-3 is on record"),
    "older-release-works": (STRONG, "another release is healthy"),
    "accumulates": (HINT, "some releases averaged micro-batches wrongly"),
    "computes-bfloat16": (HINT, "the bfloat16 optimizer has had defects"),
    "sentinel-norm": (HINT, "DeepSpeed took the step although the norm was not finite"),
    "hidden-loss": (HINT, "after the bad update the loss is NaN, which is printed as 0"),
    "gradient-first": (STRONG, "the forward was finite, the reduced gradient was not"),
    "sudden": (HINT, "such defects strike now and then"),
    "updates-skipped": (-STRONG, "the bad steps are taken, not skipped"),
    "updates-taken": (HINT, "the steps were taken, and not skipped"),
    "loss-scale-collapse": (-STRONG, "it does not depend on the loss scale"),
    "no-deepspeed": (-DECISIVE, "gradients do not pass through DeepSpeed"),
    "no-word-of-deepspeed": (-STRONG, "the defects are in DeepSpeed itself"),
    "first-step-lost": (-STRONG, "no gradient had been reduced yet"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defect:
    affected: SpecifierSet
    fixed_in: str
    severity: Severity
    what: str
    key: str


BUCKETS = _Defect(
    affected=SpecifierSet(">=0.12.4,<0.14.3"), fixed_in="0.14.3", severity="error", key="zero_optimization.stage",
    what="reduces gradients through shared buckets that are overwritten (loss 0, gradient norm 1.0 or nan)",
)  # fmt: skip
UNSCALED = _Defect(
    affected=SpecifierSet(">=0.18.0,<0.18.6"), fixed_in="0.18.6", severity="warning", key="bf16.enabled",
    what="divides bfloat16 gradients by 65536 without ZeRO, though the loss was never scaled",
)  # fmt: skip
LEAK = _Defect(
    affected=SpecifierSet(">=0.18.6,<0.19.0"), fixed_in="0.19.0", severity="warning", key="data_types.grad_accum_dtype",
    what="leaves the last micro-batch out of the average over ranks (ZeRO-1, float32 accumulation)",
)  # fmt: skip
DEFECTS = (BUCKETS, UNSCALED, LEAK)


def foresee(
    precision: Precision, parallel: Parallel, versions: Mapping[str, str] | None = None
) -> Iterator[Finding | Needs]:
    version = (versions or {}).get("deepspeed")
    unknown = parallel.kind == "deepspeed" and parallel.zero_stage is None
    if unknown and (version is None or any(one.affected.contains(version, prereleases=True) for one in DEFECTS)):
        yield Needs("parallel.zero_stage" if version else "versions.deepspeed")
    for defect in _defects(precision, parallel):
        if version is None:
            yield Needs("versions.deepspeed")
            return
        if not defect.affected.contains(version, prereleases=True):
            continue
        # Without overlap there are healthy runs of these releases too.
        soft = defect is BUCKETS and parallel.overlap_comm is not True
        yield Finding(
            severity="warning" if soft else defect.severity,
            message=f"DeepSpeed {version} {defect.what}; fixed in {defect.fixed_in}",
            where=Where(file=parallel.source, key=defect.key),
            evidence={
                "package": "deepspeed", "version": version, "affected": str(defect.affected),
                "fixed_in": defect.fixed_in, "zero_stage": parallel.zero_stage, "compute": precision.compute,
            },
        )  # fmt: skip


def weigh(
    parallel: Parallel, precision: Precision, versions: Mapping[str, str], repeats: bool | None = None
) -> Iterator[Evidence]:
    version = versions.get("deepspeed")
    of_deepspeed = parallel.kind in (None, "deepspeed")
    if of_deepspeed and None in (parallel.kind, parallel.zero_stage, precision.compute, version):
        return
    known = [d for d in _defects(precision, parallel) if d.affected.contains(version or "", prereleases=True)]
    if repeats:
        yield evidence("repetition", -DECISIVE, "the step is bad on one process too, without any reduction")
    elif not known:
        yield evidence("DeepSpeed release", -STRONG, f"no defect of DeepSpeed {version} in this mode is on record")
    else:
        yield evidence("DeepSpeed release", DECISIVE, f"DeepSpeed {version} {known[0].what}")


def _defects(precision: Precision, parallel: Parallel | None) -> Iterator[_Defect]:
    """The defects whose mode this is, whatever the version."""
    if parallel is None or parallel.kind != "deepspeed":
        return
    if parallel.zero_stage in (1, 2) and parallel.multi_rank_bucket_allreduce is not False:
        yield BUCKETS
    if precision.compute == "bfloat16" and parallel.zero_stage == 0:
        yield UNSCALED
    accumulated_wide = parallel.grad_accum_dtype in ("fp32", "float32")
    if precision.compute == "bfloat16" and parallel.zero_stage == 1 and accumulated_wide:
        yield LEAK

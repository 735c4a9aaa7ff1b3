"""Gradients are summed in bfloat16, over many micro-steps or many ranks.

## What happens

A sum in bfloat16 keeps 8 bits. When the running sum is 256 times an addend, the addend rounds away: after a few
hundred micro-steps or ranks the later ones count for little or nothing, and the rounding errors of the earlier ones
have the size of the signal. The loss is finite, a little too high, and the gap grows with accumulation and scale.
ZeRO 1 to 3 in bfloat16 accumulate in the dtype of the model unless configured otherwise.

## How to tell

bfloat16, the number of micro-steps, the number of ranks, `data_types.grad_accum_dtype`, `communication_data_type`. The
same settings are stable at a smaller scale.

## How to prove

Accumulate the same micro-batches once in float32 and once in bfloat16 and compare the gradients.

## What to do

Accumulate and reduce in float32 (change-settings): `data_types.grad_accum_dtype: fp32`, and for many ranks
`communication_data_type: fp32`.

## What does not help

A lower learning rate; clipping. float32 weights alone: the gradients were rounded before they met them.

## References

deepspeedai/DeepSpeed#2352 and #2768 (accumulation in bfloat16 under ZeRO, float32 on request), #3370 (communication
dtype, found by bisecting releases), #5170; NVIDIA/Megatron-LM (accumulate_allreduce_grads_in_fp32 with bfloat16).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Optimizer, Parallel, Precision
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

SOME, MANY = 32, 128
"""Addends. With n equal ones the last adds 1/n of the sum, and bfloat16 rounds from 1/256 down to nothing; signs and
sizes vary, so the loss sets in earlier and more softly."""
WIDE = ("fp32", "float32")

remedies = ["equivalent-setting"]
public_incidents = 3
foresees = "float32 accumulation"

tells: Tells = {
    "float32-accumulation": (STRONG, "bfloat16 loses small addends in long sums"),
    "computes-bfloat16": (HINT, "bfloat16 has 8 significant bits"),
    "zero-0": (HINT, "ZeRO-0 reduces in the dtype of the gradients"),
    "nonfinite-gradient": (-STRONG, "rounding leaves every number finite"),
    "accumulates": (HINT, "many small gradients are added"),
    "climbed": (HINT, "the loss climbs before it is lost"),
    "divergence": (HINT, "rounding that adds up makes the loss climb, as much else does"),
}


def foresee(precision: Precision, parallel: Parallel, optimizer: Optimizer | None = None) -> Iterator[Finding | Needs]:
    if parallel.kind != "deepspeed" or precision.compute != "bfloat16":
        return
    steps, world = (optimizer.accumulation if optimizer else None) or 1, parallel.world or 1
    added = parallel.grad_accum_dtype not in WIDE and parallel.zero_stage in (1, 2, 3)
    sent = parallel.communication_dtype not in (None, *WIDE)
    if added and steps >= SOME:
        what, key, count = f"{steps} micro-steps are accumulated", "data_types.grad_accum_dtype", steps
    elif sent and world >= SOME:
        what, key, count = f"gradients of {world} ranks are reduced", "communication_data_type", world
    else:
        yield from needs(optimizer=optimizer) if added else ()
        return
    severity: Severity = "warning" if count >= MANY else "info"
    yield Finding(
        severity=severity,
        message=f"{what} in bfloat16 (ZeRO-{parallel.zero_stage}), where an addend below 1/256 of the sum is lost",
        where=Where(file=parallel.source, key=key),
        evidence={"addends": count, "warning_from": MANY, "zero_stage": parallel.zero_stage},
        remedy=Remedy(patch={key: "fp32"}),
    )


def weigh(precision: Precision, parallel: Parallel, symptoms: set[str]) -> Iterator[Evidence]:
    if precision.compute is None and parallel.grad_accum_dtype not in WIDE:
        return
    if precision.compute != "bfloat16" or parallel.grad_accum_dtype in WIDE:
        yield evidence("float32 accumulation", -DECISIVE, "gradients are accumulated in more than bfloat16")
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -DECISIVE, "but rounding in bfloat16 stays finite")

"""The DeepSpeed configuration asks for something that its ZeRO stage does not do.

## What happens

ZeRO reads some settings only in some stages. Parameters are offloaded in stage 3 alone, the optimizer in stages 1 to
3; elsewhere the section is read and ignored, and memory is used that the user believes is saved. Gradients that are
communicated in float16 in a bfloat16 run overflow on the way, though nothing in the model does. Other mistakes stop
the job at once with a message that names the key.

## How to tell

The stage against the sections. A communication dtype with less range than the dtype of compute. More memory in use
than the settings promise.

## How to prove

Print the engine's own configuration at the start and compare. With the communication dtype left out the step is finite.

## What to do

Give each setting in the stage that reads it, or write "auto" and let the trainer fill it in (match-settings).

## What does not help

Adding more keys: what a stage does not read it does not refuse either. Copying a whole file from another stage: its
buckets and offload sections were made for that one. A lower learning rate.

## References

deepspeedai/DeepSpeed, runtime/zero/config.py and offload_config.py (valid stages of both offload sections),
LianjiaTech/BELLE#154, OpenBMB/MiniCPM-V#651 (ZeRO-3 with remote code).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Parallel, Precision
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

NARROW = ("fp16", "float16", "half")

remedies = ["match-settings"]
public_incidents = 5
foresees = "communication dtype"

tells: Tells = {
    "engine-config-mismatch": (STRONG, "the engine refuses the configuration"),
    "wider-transport": (STRONG, "a feature of ZeRO that must fit the run"),
    "deepspeed": (HINT, "only DeepSpeed reads such settings"),
    "zero-3": (HINT, "under ZeRO-3 parameters are empty outside the forward"),
    "no-deepspeed": (-DECISIVE, "gradients do not pass through DeepSpeed"),
}


def foresee(precision: Precision, parallel: Parallel) -> Iterator[Finding | Needs]:
    if parallel.kind != "deepspeed":
        return
    if parallel.zero_stage is None:
        yield Needs("parallel.zero_stage")
        return
    stage = parallel.zero_stage
    offloaded = ("cpu", "nvme")
    # Warnings: the section is ignored, so the run trains, and may run out of memory.
    if parallel.offload_parameters in offloaded and stage != 3:
        text = f"offload_param is read in ZeRO-3 only and ignored in ZeRO-{stage}"
        do = "set zero_optimization.stage to 3, or remove offload_param"
        yield _finding(parallel, "warning", "zero_optimization.offload_param", text, do)
    if parallel.offload_optimizer in offloaded and stage == 0:
        text = "offload_optimizer is read in ZeRO-1 to 3 and ignored in ZeRO-0"
        do = "set zero_optimization.stage to 1 or more, or remove offload_optimizer"
        yield _finding(parallel, "warning", "zero_optimization.offload_optimizer", text, do)
    if parallel.communication_dtype in NARROW and precision.compute == "bfloat16":
        text = f"bfloat16 gradients are communicated in {parallel.communication_dtype}, which ends at 65504"
        yield _finding(parallel, "warning", "communication_dtype", text, "remove communication_data_type")


def weigh(parallel: Parallel, precision: Precision, repeats: bool | None = None) -> Iterator[Evidence]:
    if None in (parallel.communication_dtype, precision.compute):
        return
    if parallel.communication_dtype not in NARROW or precision.compute != "bfloat16":
        yield evidence("communication dtype", -DECISIVE, "nothing is sent in a narrower dtype")
    elif repeats:
        yield evidence("repetition", -DECISIVE, "the step is bad without any communication")
    else:
        yield evidence("communication dtype", DECISIVE, "bfloat16 gradients are communicated in float16")


def _finding(parallel: Parallel, severity: Severity, key: str, text: str, do: str) -> Finding:
    return Finding(
        severity=severity,
        message=text,
        where=Where(file=parallel.source, key=key),
        evidence={"zero_stage": parallel.zero_stage, "communication_dtype": parallel.communication_dtype},
        remedy=Remedy(text=do),
    )

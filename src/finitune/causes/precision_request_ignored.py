"""Float16 was asked for, and the framework computes in something else.

## What happens

Mixed precision in float16 wants a GPU. On a CPU accelerate leaves it out without a word: the Trainer reports "fp16",
and the losses are those of float32 digit for digit. Lightning turns `16-mixed` into bfloat16 there, and DeepSpeed
refuses to start. A test on a laptop then says nothing about the float16 run that follows on the card: neither its
overflows nor its loss scale were tried.

## How to tell

`use_cpu` (or no GPU) together with a request for float16. In the run: `accelerator.native_amp` is false, `scaler` is
None, and no step is ever skipped.

## How to prove

Print the dtype of the logits inside the forward, or train the same seed with and without the request: equal losses.

## What to do

Ask for what is meant: bfloat16, which a CPU does compute, or float32 (change-settings). To try float16 take a card.

## What does not help

Loss-scale settings: there is no scaler. Loading the weights in float16 as well: on a CPU that is slow and is another
run.

## References

Measured in this project (transformers 5.23, accelerate 1.x, Lightning 2.6.6, DeepSpeed 0.19, torch 2.13 on a CPU);
accelerate, accelerator.py (mixed precision "fp16" needs a device other than the CPU).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, evidence
from finitune.facts import Precision
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

INSTEAD = {
    "lightning": "Lightning computes in bfloat16 instead",
    "deepspeed": "DeepSpeed refuses to start",
}
"""What frameworks do with the request; all others rest on accelerate."""

remedies = ["change-settings"]
public_incidents = 1
foresees = "compute dtype"


def foresee(precision: Precision) -> Iterator[Finding]:
    if precision.compute != "float16" or not precision.cpu or precision.scaler in (None, "none"):
        return
    who = precision.requested_by or "transformers"
    refused = who == "deepspeed"
    severity: Severity = "error" if refused else "warning"  # the others run, as another run than was asked for
    yield Finding(
        severity=severity,
        message="mixed precision in float16 is asked for on a CPU: "
        + INSTEAD.get(who, "accelerate leaves it out, and the run computes in float32 without a loss scaler"),
        where=Where.said(precision.source),
        evidence={"asked": "float16", "cpu": True, "requested_by": who},
        remedy=Remedy(patch={"fp16": False, "bf16": True}),
    )


def weigh(precision: Precision, symptoms: set[str]) -> Iterator[Evidence]:
    if precision.compute is None or (precision.cpu is None and precision.compute == "float16"):
        return
    if not precision.cpu or precision.compute != "float16":
        yield evidence("compute dtype", -DECISIVE, f"the run computes in {precision.compute}, as it was asked to")
    elif symptoms:
        yield evidence("loss", -DECISIVE, "float32 instead of float16 makes no bad number")

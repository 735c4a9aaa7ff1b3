"""Weights that are trained are stored in float16, while automatic mixed precision scales the loss.

## What happens

The loss scaler divides gradients by the scale before the update. A gradient has the dtype of its weight, and a
float16 gradient cannot be divided without losing what scaling saved, so PyTorch refuses: "Attempting to unscale FP16
gradients", at the first clip or step. Where a framework unscales by itself, small updates vanish instead. Automatic
mixed precision wants float32 weights and casts them for each operation.

## How to tell

The model is loaded in float16 (`dtype`, `torch_dtype`, `.half()`) and `fp16` is set as well, and what is trained is
the model itself, or an adapter whose weights take the dtype of the base. Sometimes only resuming does it, because the
saved state is float16.

## How to prove

Count the dtypes of the parameters that require a gradient: one float16 among them is enough.

## What to do

Load in float32 or bfloat16, or cast what is trained to float32 (float32-trainable-weights). PEFT casts adapters by
itself (`autocast_adapter_dtype`).

## What does not help

An old release of PEFT, which many threads recommend: it only happened to keep adapters in float32. A smaller scale: the
dtype is what is refused. Switching clipping off moves the error to the step.

## References

huggingface/transformers#23165 (maintainer), PEFT documentation (troubleshooting, dtype-related issues),
huggingface/diffusers#6442 (resuming), LAION-AI/Open-Assistant#3213, Lightning-AI/pytorch-lightning#5140.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, TRAINING_ONLY, Tells, evidence
from finitune.facts import Adapter, Optimizer, Parallel, Precision
from finitune.finding import Evidence, Finding, Severity, Where

remedies = ["float32-trainable-weights", "cast-weights"]
public_incidents = 13
foresees = "weight dtype"

tells: Tells = {
    **FLOAT16_ONLY,
    **TRAINING_ONLY,
    "unscale-fp16-gradients": (DECISIVE, "the scaler refuses gradients of float16 weights"),
    "holds-float16": (STRONG, "weights that are trained are held in float16"),
    "speaks-of-float16": (HINT, "weights may be held in float16"),
    "hidden-loss": (HINT, "a bad update makes the loss NaN, which is printed as 0"),
    "sudden": (-STRONG, "the first step already shows it"),
    "no-inf-checks": (STRONG, "the scaler found no gradient of a float32 weight"),
    "grad-scaler": (STRONG, "a GradScaler refuses such weights"),
}


def foresee(
    precision: Precision,
    optimizer: Optimizer | None = None,
    adapter: Adapter | None = None,
    parallel: Parallel | None = None,
) -> Iterator[Finding]:
    if not _clash(precision) or _keeps_masters(precision, parallel) or _adapter(optimizer, adapter):
        return
    whole = (optimizer is not None and optimizer.lora is False) or (adapter is not None and adapter.kind == "none")
    # An error is certain: PyTorch raises. Where the files do not say what is trained, the script may add an adapter.
    severity: Severity = "error" if whole else "warning"
    unless = "" if whole else "; harmless only where an adapter alone is trained, in float32"
    yield Finding(
        severity=severity,
        message="the model is loaded in float16 and automatic mixed precision scales its loss, so the first step ends "
        f"with 'Attempting to unscale FP16 gradients'{unless}",
        where=Where.said(precision.source),
        evidence={"parameters": precision.parameters, "compute": precision.compute, "scaler": precision.scaler},
    )


def weigh(precision: Precision, symptoms: set[str]) -> Iterator[Evidence]:
    if precision.parameters is None:
        return
    if precision.parameters != "float16":
        yield evidence("weight dtype", -DECISIVE, f"weights are held in {precision.parameters}")
        return
    yield evidence("weight dtype", HINT, "weights are held in float16")
    if symptoms:
        yield evidence("loss", -HINT, "but the usual end is an exception, and the run went on to a bad number")


def _clash(precision: Precision) -> bool:
    return (
        precision.compute == precision.parameters == "float16"
        and precision.scaler in ("dynamic", "static")
        and not precision.cpu
    )


def _keeps_masters(precision: Precision, parallel: Parallel | None) -> bool:
    """DeepSpeed casts the model itself and keeps a float32 copy of what it trains."""
    kind = parallel.kind if parallel else None
    return kind == "deepspeed" or (precision.source or "").endswith("fp16.enabled")


def _adapter(optimizer: Optimizer | None, adapter: Adapter | None) -> bool:
    return bool(optimizer and optimizer.lora) or (adapter is not None and adapter.kind not in (None, "none"))

"""Adam keeps its state in float16, where eps and the squared gradient round to zero.

## What happens

With weights in float16 and no float32 copy, the second moment of a gradient below 5e-3 (squared, times 0.001) is below
3e-8 and becomes 0, and so does an eps of 1e-8: half of the smallest float16 is 3e-8. The update is then something
divided by zero, or 0 / 0 where the gradient is exactly zero, as it is for every embedding row that the batch does not
use. The first loss is normal, every gradient is finite, and the weights are NaN after one step. Measured with torch
2.13: NaN for a zero gradient, -inf for one of 1e-4, finite for 1e-2.

## How to tell

Trained weights in float16, an Adam that keeps its state in their dtype, eps below 3e-8. SGD and Adafactor train. The
fused kernels (`adamw_torch_fused`, the default of transformers with torch 2.8 or later) compute the quotient in
float32: the weights stay finite, and the loss climbs.

## How to prove

Take the same step with the optimizer's state in float32: the weights stay finite. With eps 1e-5 they do too.

## What to do

Hold weights and state in float32 (float32-trainable-weights). A larger eps (raise-adam-eps) is a stop-gap.

## What does not help

A lower learning rate: zero divided by zero stays NaN. Clipping, other data, a loss scaler: gradients were finite.

## References

NVIDIA/apex#240, google-deepmind/optax#1754 (a zero gradient suffices), matanbt/TROPT#8, kohya-ss/sd-scripts#1914,
incident taxonomy; research on this project measured 1e-8 as failing and 1e-7 as finite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, TRAINING_ONLY, Tells, evidence
from finitune.facts import Adapter, Optimizer, Parallel, Precision, Training
from finitune.finding import Evidence, Finding, Origin, Remedy, Severity, Where

ROUNDS_TO_ZERO = 2.0**-25
"""Up to half of the smallest float16, and the half itself, rounds to zero."""
DEFAULT_EPS = 1e-8
"""Of torch.optim.Adam and AdamW, and of the trainers."""

# Optimizers whose state has the dtype of the weights, in separate operations. Others keep float32 or 8-bit states.
IN_WEIGHT_DTYPE = re.compile(r"^(adamw?|adamw_(torch|hf)|torch_adamw?)$")

experiments = [
    Experiment(arm="optimizer-float32", expect="finite"),
    Experiment(arm="update-times=0.1", expect="non-finite", placebo=True),  # a lower learning rate does not help
]
remedies = ["float32-trainable-weights", "raise-adam-eps"]
public_incidents = 11
foresees = "weight dtype"

tells: Tells = {
    **FLOAT16_ONLY,
    **TRAINING_ONLY,
    "adam-eps-named": (STRONG, "an eps of 1e-8 is 0 in float16"),
    "holds-float16": (STRONG, "Adam keeps its state in the dtype of the weights"),
    "second-step": (STRONG, "the first update makes the weights NaN"),
    "first-finite-then-nan": (STRONG, "the first update makes the weights NaN"),
    "sgd-works": (STRONG, "SGD does not divide by the root of a second moment"),
    "plain-optimizer-works": (HINT, "another optimizer has no such eps"),
    "unscale-fp16-gradients": (-STRONG, "the step is refused before Adam takes part"),
    "speaks-of-float16": (HINT, "only float16 rounds 1e-8 to 0"),
    "nonfinite-loss": (HINT, "after the first update the weights give NaN"),
    "hidden-loss": (HINT, "after the first update the weights give NaN, which is printed as 0"),
    "gradient-first": (-STRONG, "weights that are NaN show in the loss first"),
    "sudden": (-STRONG, "the first update already divides by zero"),
    "divergence": (STRONG, "fused kernels, which newer transformers take by default, divide by 1e-8: large steps"),
    "tiny-learning-rate": (-HINT, "at such a rate the first update moves nothing"),
    "probability-tensor": (HINT, "training had made the weights NaN, unnoticed"),
    "loss-jumped": (HINT, "a quotient with a vanished denominator is a large step"),
    "nan-passes": (-DECISIVE, "weights that are NaN stay NaN"),
    "first-step-lost": (-DECISIVE, "nothing had been updated yet"),
}


def foresee(
    precision: Precision,
    optimizer: Optimizer,
    adapter: Adapter | None = None,
    parallel: Parallel | None = None,
    training: Training | None = None,
) -> Iterator[Finding | Needs]:
    if not _at_risk(precision, optimizer) or (parallel and parallel.kind == "deepspeed"):
        return
    # PEFT holds the adapter in float32 beside a float16 base; only what is said to be trained in full is at risk.
    lora = optimizer.lora or (adapter is not None and adapter.kind not in (None, "none"))
    full = list(adapter.trainable or ()) if adapter is not None else []
    single = lora and training is not None and training.framework == "torchtune"  # it holds everything in one dtype
    if lora and not full and not single:
        yield from needs(adapter=adapter)
        return
    beside = f"{', '.join(full)} beside the adapter" if lora else "weights"
    what = "weights of the adapter" if single else beside
    # Certain for an optimizer that is named; the default of recent trainers is a fused one, which survives.
    severity: Severity = "error" if optimizer.name else "warning"
    eps = DEFAULT_EPS if optimizer.eps is None else optimizer.eps
    default = " (the default)" if optimizer.eps is None else ""
    yield Finding(
        severity=severity,
        message=f"{what} are trained in float16 without a float32 copy, where eps {eps:g}{default} is zero (smallest "
        f"{2.0**-24:.2g}): {optimizer.name or 'Adam'} divides by zero, and the weights are NaN after one step",
        where=_place(precision, optimizer),
        evidence={"eps": eps, "rounds_to_zero_up_to": ROUNDS_TO_ZERO, "parameters": precision.parameters},
        remedy=Remedy(name="use-float32", text="set dtype to fp32, or bf16 where the card has it") if single else None,
    )


def _place(precision: Precision, optimizer: Optimizer) -> Where:
    """An eps that nobody wrote has no line: there the weights are what to change."""
    unsaid = optimizer.eps is None and precision.source
    return Where.said(precision.source) if unsaid else Where(file=optimizer.source, key="adam_epsilon")


def weigh(precision: Precision, optimizer: Optimizer, origin: Origin) -> Iterator[Evidence]:
    if not (_at_risk(precision, optimizer) or _divides_in_float16(precision, optimizer, origin)):
        if precision.parameters is None:
            return
        yield evidence(
            "weight dtype", -DECISIVE, f"eps {optimizer.eps} can be held beside {precision.parameters} weights"
        )
        return
    yield evidence(
        "weight dtype", STRONG, f"weights are float16, in which eps {optimizer.eps or DEFAULT_EPS:g} is zero"
    )
    if origin.phase == "optimizer":
        yield evidence("origin", DECISIVE, f"{origin.op} makes non-finite weights of finite gradients")
    elif origin.phase == "parameter":
        yield evidence("origin", STRONG, "weights are bad before the forward begins")
    else:
        yield evidence(
            "origin", -DECISIVE, f"but the first bad value arises in the {origin.phase}, from finite weights"
        )


def _at_risk(precision: Precision, optimizer: Optimizer) -> bool:
    eps = DEFAULT_EPS if optimizer.eps is None else optimizer.eps
    return (
        precision.parameters == "float16"
        and precision.scaler in (None, "none")
        and bool(IN_WEIGHT_DTYPE.match((optimizer.name or "adamw").lower()))
        and eps <= ROUNDS_TO_ZERO
    )


def _divides_in_float16(precision: Precision, optimizer: Optimizer, origin: Origin) -> bool:
    """An Adam of the program's own was seen to divide in float16."""
    own = "adam" in (optimizer.name or "").lower() and precision.parameters == origin.dtype == "float16"
    return own and origin.phase == "optimizer" and origin.op in ("aten.addcdiv", "aten.div")

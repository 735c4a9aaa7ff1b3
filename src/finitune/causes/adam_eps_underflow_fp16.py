"""Adam keeps its state in float16, where eps and the squared gradient round to zero.

## What happens

With weights in float16 and no float32 copy, the second moment of a gradient below 5e-3 (squared, times 0.001) is below
3e-8 and becomes 0, and so does an eps of 1e-8: half of the smallest float16 is 3e-8. The update is then something
divided by zero, or 0 / 0 where the gradient is exactly zero, as it is for every embedding row that the batch does not
use. The first loss is normal, every gradient is finite, and the weights are NaN after one step. Measured with torch
2.13: NaN for a zero gradient, -inf for one of 1e-4, finite for 1e-2.

## How to tell

Trained weights in float16, an Adam that keeps its state in their dtype, eps below 3e-8. SGD and Adafactor train. The
fused kernels compute the quotient in float32 and stay finite.

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
from finitune.facts import Adapter, Optimizer, Parallel, Precision
from finitune.finding import Evidence, Finding, Origin, Severity, Where

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

tells = {
    "adam-eps-named": (2.5, "1e-8 is 0 in float16"),
    "weights-in-float16": (3.0, "Adam keeps its state in the dtype of the weights"),
    "holds-float16": (4.0, "Adam keeps its state in the dtype of the weights"),
    "second-step first-finite-then-nan": (4.0, "the first update spoils the weights"),
    "sgd-sound": (2.5, "SGD and Adafactor divide otherwise"),
    "plain-optimizer-sound": (0.7, "another optimizer is sound"),
    "computes-bfloat16": (-4.0, "bfloat16 holds 1e-8"),
    "unscale-fp16-gradients": (-3.0, "the step is refused before"),
    "speaks-of-float16": (0.5, "float16 is spoken of"),
    "loss-not-finite": (1.0, "weights after the first update"),
    "hidden-loss": (1.0, "the trainer prints 0 for NaN"),
    "sentinel-norm": (-5.0, "float16 would have skipped the step"),
    "zero-loss-zero-gradient": (-4.0, "an overflow leaves no gradient of 0"),
    "zero-loss-finite-gradient": (-3.0, "an overflow spoils the gradient too"),
    "gradient-first": (-4.0, "it would show in the loss first"),
    "sudden": (-4.0, "it would have shown at once"),
    "diverged": (1.0, "a fused kernel divides by 1e-8 instead"),
    "tiny-rate": (-1.0, "at such a rate nothing moves"),
    "probability-tensor": (1.5, "training had gone NaN unseen"),
    "computes-float32": (-8.0, "float32 has the range"),
    "kernel-level serving": (-3.0, "no optimizer takes part"),
    "loss-jumped": (1.0, "a quotient with a vanished denominator"),
    "nan-passes": (-5.0, "weights that are NaN stay NaN"),
    "first-step-lost": (-5.0, "nothing had been updated yet"),
}


def foresee(
    precision: Precision, optimizer: Optimizer, adapter: Adapter | None = None, parallel: Parallel | None = None
) -> Iterator[Finding | Needs]:
    if not _at_risk(precision, optimizer) or (parallel and parallel.kind == "deepspeed"):
        return
    # PEFT holds the adapter in float32 beside a float16 base; only what is said to be trained in full is at risk.
    lora = optimizer.lora or (adapter is not None and adapter.kind not in (None, "none"))
    full = list(adapter.trainable or ()) if adapter is not None else []
    if lora and not full:
        yield from needs(adapter=adapter)
        return
    what = f"{', '.join(full)} beside the adapter" if lora else "weights"
    # Certain for an optimizer that is named; the default of recent trainers is a fused one, which survives.
    severity: Severity = "error" if optimizer.name else "warning"
    eps = DEFAULT_EPS if optimizer.eps is None else optimizer.eps
    default = " (the default)" if optimizer.eps is None else ""
    yield Finding(
        severity=severity,
        message=f"{what} are trained in float16 without a float32 copy, where eps {eps:g}{default} is zero (smallest "
        f"{2.0**-24:.2g}): {optimizer.name or 'Adam'} divides by zero, and the weights are NaN after one step",
        where=Where(file=optimizer.source, key="adam_epsilon"),
        evidence={"eps": eps, "rounds_to_zero_up_to": ROUNDS_TO_ZERO, "parameters": precision.parameters},
    )


def weigh(precision: Precision, optimizer: Optimizer, origin: Origin) -> Iterator[Evidence]:
    if not _at_risk(precision, optimizer):
        if precision.parameters is None:
            return
        yield Evidence(text=f"eps {optimizer.eps} can be held beside {precision.parameters} weights", bits=-8.0)
        return
    yield Evidence(text=f"weights are float16, in which eps {optimizer.eps or DEFAULT_EPS:g} is zero", bits=4.0)
    if origin.phase == "optimizer":
        yield Evidence(text=f"{origin.op} makes non-finite weights of finite gradients", bits=6.0)
    elif origin.phase == "parameter":
        yield Evidence(text="weights are bad before the forward begins", bits=2.0)
    else:
        yield Evidence(text=f"but the first bad value arises in the {origin.phase}, from sound weights", bits=-8.0)


def _at_risk(precision: Precision, optimizer: Optimizer) -> bool:
    eps = DEFAULT_EPS if optimizer.eps is None else optimizer.eps
    return (
        precision.parameters == "float16"
        and precision.scaler in (None, "none")
        and bool(IN_WEIGHT_DTYPE.match((optimizer.name or "adamw").lower()))
        and eps <= ROUNDS_TO_ZERO
    )

"""Weights are trained in bfloat16 without a float32 copy, and most updates round away.

## What happens

Neighbours in bfloat16 are 2**-7 to 2**-8 of the value apart. Adam moves a weight by about the learning rate; less than
half that distance rounds back. At 1e-5 15 % of weights of size 0.02 move, at 1e-6 2 %. Weight decay rounds away.

## How to tell

Trained weights in bfloat16, no float32 copy (DeepSpeed's bf16 mode keeps one). Few elements change in a step.

## How to prove

Take one step on a float32 copy (or tensor by tensor, rounded by chance) and one in bfloat16, and see what has moved.

## What to do

Hold what is trained in float32 and compute in bfloat16 (float32-trainable-weights), or stochastic-rounding.

## What does not help

More steps: an update that rounds away does so every time. A higher rate moves more weights and may diverge.

## References

meta-pytorch/torchtune#2254, NVIDIA-NeMo/Automodel#2248, Nerogar/OneTrainer#996 (weight decay); arXiv 2502.20566.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Adapter, Optimizer, Parallel, Precision, Weights
from finitune.finding import Evidence, Finding, Severity, Where
from finitune.rates import ADAM
from finitune.series import Series

USUAL_RMS = 0.02
"""Initial standard deviation of most transformers, near which the weights of released models stay."""
DEFAULT_LR, DEFAULT_SCHEDULE = 5e-5, "linear"
"""Of TrainingArguments, where none is given."""
FEW, HALF = 0.1, 0.5
"""Less than one weight in ten moves: a warning. Below one half: worth knowing, and runs like it do train."""

# Adam's first steps are of the size of the rate; other families have sizes of their own, these three round by chance.
ALWAYS_LOST = 2.0**-9
"""A change of a bfloat16 value by less than this share of it rounds away, whatever its bits."""
COMPENSATED = re.compile(r"anyprecision|kahan|stochastic|_sr$")

experiments = [
    Experiment(arm="optimizer-float32", expect="finite"),
    Experiment(arm="update-times=1", expect="stuck", placebo=True),
    Experiment(arm="rounded-by-chance", expect="finite", optional=True),
    Experiment(arm="rounded-to-nearest", expect="stuck", placebo=True, optional=True),
]
remedies = ["float32-trainable-weights", "stochastic-rounding"]
public_incidents = 7
foresees = "weight dtype"
tells: Tells = {
    "pure-bfloat16": (STRONG, "updates of less than half an ulp round away"),
    "holds-bfloat16": (HINT, "updates of less than half an ulp round away"),
    "nonfinite-gradient": (-STRONG, "rounding leaves every number finite"),
    "nonfinite-loss": (-STRONG, "rounding leaves every number finite"),
    "does-not-learn": (STRONG, "weights that are rounded back stay as they are"),
    "loss-repeats": (STRONG, "weights that are rounded back stay as they are"),
    "computes-float16": (-STRONG, "float16 has more digits than bfloat16"),
    "float32-works": (HINT, "float32 keeps updates that bfloat16 rounds away"),
    "from-the-start": (-STRONG, "nothing had been updated yet"),
}


def foresee(
    precision: Precision, optimizer: Optimizer, weights: Weights | None = None, adapter: Adapter | None = None,
    parallel: Parallel | None = None,
) -> Iterator[Finding | Needs]:  # fmt: skip
    source = precision.source or ""
    # DeepSpeed keeps float32 masters; FSDP has them where mixed precision was asked for, and not for a dtype alone.
    sharded = parallel is not None and parallel.kind == "fsdp" and not source.endswith((": dtype", ".model_dtype"))
    kept = sharded or (parallel and parallel.kind == "deepspeed") or source.endswith("bf16.enabled")
    trained_beside = optimizer.lora or (adapter is not None and adapter.kind not in (None, "none"))
    name = (optimizer.name or "adamw").lower()
    other = not ADAM.match(name) or COMPENSATED.search(name)
    lr = DEFAULT_LR if optimizer.lr is None else optimizer.lr
    if precision.parameters != "bfloat16" or kept or trained_beside or lr <= 0 or other:
        return
    rms = _typical_rms(weights)
    moved = moved_fraction(lr, rms)
    decay = optimizer.weight_decay or 0.0
    said = optimizer.lora is False or (adapter is not None and adapter.kind == "none")
    severity: Severity = "warning" if moved < FEW and said else "info"
    schedule = optimizer.schedule or DEFAULT_SCHEDULE
    course = _over_schedule(schedule, lr, rms)
    mean, stalls = sum(course) / len(course), next((i for i, share in enumerate(course) if share < FEW), None)
    if mean >= HALF and not 0 < lr * decay < ALWAYS_LOST:
        yield from needs(weights=weights)
        return
    forecast = f", {mean:.1%} on average over the {schedule} schedule" if len(course) > 1 else ""
    if len(course) > 1 and stalls:
        steps = optimizer.max_steps or 0
        at = f"step {stalls * steps // 100}" if steps > 0 else f"{stalls} % of it"
        forecast += f" and less than {FEW:.0%} from {at} on"
    lost = f", and weight decay {decay:g} never moves one" if 0 < lr * decay < ALWAYS_LOST else ""
    yield Finding(
        severity=severity,
        message=f"weights are loaded and trained in bfloat16: at learning rate {lr:g} about {moved:.1%} of "
        f"them move in a step{forecast}{lost}; the other updates round away",
        where=Where(file=optimizer.source, key="learning_rate"),
        evidence={
            "lr": lr, "weight_rms": rms, "moved_fraction": moved, "moved_over_schedule": mean,
            "stalls_from": None if stalls is None else stalls / 100, "weight_decay": decay,
        },
    )  # fmt: skip


def weigh(
    precision: Precision, optimizer: Optimizer, symptoms: set[str], moved: Series | None = None
) -> Iterator[Evidence]:
    if precision.parameters is None and not optimizer.lora:
        return
    if precision.parameters != "bfloat16" or optimizer.lora:
        yield evidence("weight dtype", -DECISIVE, f"weights are not trained in bfloat16 ({precision.parameters})")
        return
    if "stagnation" in symptoms and moved:  # measured, so nothing is estimated
        yield evidence("size of updates", DECISIVE, f"{moved.last:.1%} of the weights with a gradient changed in it")
    elif symptoms - {"standstill"}:
        yield evidence("loss", -DECISIVE, "rounding gives neither a non-finite value nor a spike")
    elif optimizer.lr:
        share = moved_fraction(optimizer.lr, USUAL_RMS)
        size = STRONG if share < HALF else -STRONG
        yield evidence("size of updates", size, f"about {share:.1%} of bfloat16 weights move in a step")


def moved_fraction(lr: float, rms: float) -> float:
    """Share of normally distributed bfloat16 weights of that rms that an update of size `lr` changes.

    In [2**e, 2**(e+1)) neighbours are 2**(e-7) apart, so a weight moves where 2**(e-8) < lr.
    """
    exponent = math.ceil(math.log2(lr) + 8) - 1
    return math.erf(2.0 ** (exponent + 1) / (rms * math.sqrt(2)))


def _over_schedule(schedule: str, lr: float, rms: float) -> list[float]:
    """The moved fraction at each hundredth of the run; one value for a schedule whose course is not known."""
    if schedule.startswith("cosine"):
        rates = [lr * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(100)]
    else:
        rates = [lr * (1 - step / 100) for step in range(100 if schedule.startswith("linear") else 1)]
    return [moved_fraction(rate, rms) for rate in rates]


def _typical_rms(weights: Weights | None) -> float:
    """Median over the matrices, the tensors that hold nearly all weights."""
    sizes = [t.rms for t in weights.tensors if len(t.shape) >= 2 and t.rms > 0] if weights else []
    return float(np.median(sizes)) if sizes else USUAL_RMS

"""The learning-rate schedule is not as long as the run.

## What happens

A schedule counts steps, and a run has as many as data, epochs, batch, accumulation and processes make. A warm-up that
is longer than the run never reaches the rate that was asked for; a schedule that ends earlier trains the rest at zero;
one that is counted in micro-steps or per process is off by that factor. Nothing is non-finite; the model hardly moves,
or the last third of the run does nothing. A schedule of one's own that divides by the steps that are left makes a
learning rate of infinity or NaN at its end, and all weights with it; one that goes on below zero climbs instead of
falling, and the root or the power of a negative number is NaN or complex.

## How to tell

Steps per epoch are rows / (batch x accumulation x processes). Compare with `warmup_steps`, `max_steps` and, in a
DeepSpeed file, `total_num_steps`. The logged rate of the last step: a fraction of the peak, or zero long before.

## How to prove

Print the rate of every step from the scheduler alone; no training is needed.

## What to do

Give the warm-up as a share of the run (`warmup_ratio`), and let the trainer count ("auto" in the DeepSpeed file)
(change-settings).

## What does not help

A higher rate to make up for it: after a change of batch size or processes it is too high.

## References

transformers documentation (Trainer: warm-up and the number of steps; DeepSpeed: scheduler "auto"); DeepSpeed
documentation (WarmupDecayLR, total_num_steps); science survey of this project, fault 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, STRONG, evidence
from finitune.facts import Batching, Optimizer, Parallel, TokenUse
from finitune.finding import Evidence, Finding, Origin, Remedy, Severity, Where
from finitune.series import Series

HALF = 0.5
"""Of the run spent on warming up: more than any recipe, and worth a question."""
MUCH_SHORTER = 0.8
"""The schedule ends before this share of the run; rounding of the last epoch stays far above it."""

remedies = ["change-settings"]
public_incidents = 1
foresees = "schedule"


def foresee(
    optimizer: Optimizer,
    tokens: TokenUse | None = None,
    parallel: Parallel | None = None,
    batching: Batching | None = None,
) -> Iterator[Finding | Needs]:
    steps, counted = _steps(optimizer, tokens, parallel, batching)
    warm, ends = optimizer.warmup_steps, optimizer.schedule_steps
    share = optimizer.warmup_ratio
    if warm is None and share is not None and HALF < share <= 1:
        text = f"warm-up takes {share:.0%} of the run"
        yield _finding(optimizer, "info", "warmup_ratio", text, steps, {"warmup_ratio": 0.03})
    if steps is None:
        yield from needs(tokens=tokens, parallel=parallel) if warm or ends else ()
        return
    if warm is not None and warm > HALF * steps:
        reached = min(1.0, steps / warm)
        never = f"the learning rate reaches {reached:.0%} of what was asked for" if warm > steps else "over half of it"
        yield _finding(
            optimizer, "warning" if warm > steps else "info", "warmup_steps",
            f"warm-up takes {warm} steps and the run has {steps}{counted}: {never}", steps,
            {"warmup_steps": max(1, round(0.03 * steps))},
        )  # fmt: skip
    if ends is not None and 0 < ends < MUCH_SHORTER * steps:
        yield _finding(
            optimizer, "warning", "scheduler.params.total_num_steps",
            f"the schedule ends after {ends} steps and the run has {steps}{counted}: the rest trains at the last rate, "
            "which is zero or the smallest", steps, {"scheduler.params.total_num_steps": "auto"},
        )  # fmt: skip


def weigh(
    optimizer: Optimizer, lr: Series, symptoms: set[str], incident: Mapping[str, Any] | None = None,
    origin: Origin | None = None,
) -> Iterator[Evidence]:  # fmt: skip
    update = origin.op if origin is not None and origin.phase == "optimizer" else None
    refused = [fact["learning_rate"] for fact in (incident or {}).get("batch") or () if "learning_rate" in fact]
    if refused:
        yield evidence("learning rate", DECISIVE, f"the schedule has made the learning rate {refused[0]}")
        yield evidence("origin", STRONG, "the update is what has raised, and it is made with that rate")
        return
    if len(lr) and not 0 <= lr.values[-1] < math.inf:
        if update is not None and update.startswith("aten.") and not math.isfinite(lr.values[-1]):
            yield evidence("learning rate", -DECISIVE, "the learning rate is computed of tensors, by no schedule")
            return
        yield evidence("learning rate", DECISIVE, f"the schedule has made the learning rate {lr.values[-1]:g}")
        if update is not None:
            yield evidence("origin", STRONG, "the update is the first that is not finite, and is made with that rate")
        elif lr.values[-1] < 0 and "divergence" in symptoms:
            yield evidence("loss", STRONG, "it climbs, as it does in steps along the gradient instead of against it")
        return
    if optimizer.lr and len(lr) and float(lr.values.max()) >= HALF * optimizer.lr:
        yield evidence("learning rate", -DECISIVE, "the learning rate has reached what was asked for")
    elif symptoms:
        yield evidence("loss", -DECISIVE, "a learning rate below what was asked for breaks nothing")


def _steps(
    optimizer: Optimizer, tokens: TokenUse | None, parallel: Parallel | None, batching: Batching | None
) -> tuple[int | None, str]:
    """Optimizer steps of the run, and in words how they were counted."""
    if optimizer.max_steps is not None and optimizer.max_steps > 0:
        return optimizer.max_steps, ""
    world = parallel.world if parallel and parallel.world else None
    packed = batching is not None and batching.packing is True
    if tokens is None or packed or world is None or not optimizer.batch or optimizer.epochs is None:
        return None, ""
    rows = optimizer.batch * (optimizer.accumulation or 1) * world
    steps = max(1, math.ceil(tokens.sequences / rows)) * optimizer.epochs
    return max(1, round(steps)), f" ({tokens.sequences} rows, {rows} a step, {optimizer.epochs:g} epochs)"


def _finding(
    optimizer: Optimizer, severity: Severity, key: str, text: str, steps: int | None, patch: dict[str, object]
) -> Finding:
    return Finding(
        severity=severity, message=text, where=Where(file=optimizer.source, key=key),
        evidence={"steps": steps, "warmup_steps": optimizer.warmup_steps, "schedule_steps": optimizer.schedule_steps},
        remedy=Remedy(patch=patch),
    )  # fmt: skip

"""One plain training loop in every precision, as a user would write it. It does not know finitune.

run = prepare(model, batches, lambda parameters: AdamW(parameters, lr=1e-3), Options(dtype="float16"))
with finitune.watch(run.model, run.optimizer):      # from outside, or not at all
    for step in train(run):
        print(step.loss)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from finitune.facts import DEFAULT_LOSS_SCALE
from finitune.gym.data import Batch
from finitune.gym.float16_optimizer import Float16Optimizer
from finitune.gym.loss_scale import DynamicLossScaler

Dtype = Literal["float32", "bfloat16", "float16", "bfloat16-autocast", "float16-autocast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to train. `dtype`:

    - "float32", "bfloat16": parameters and arithmetic in that dtype
    - "float16": parameters and arithmetic in float16, float32 masters in a Float16Optimizer, `scaler` for its loss
    - "bfloat16-autocast": float32 parameters
    - "float16-autocast": float32 parameters, torch's GradScaler starting at `initial_scale`

    `clip` is the largest L2 norm of the gradient of a step, `accumulate` the number of micro-batches in one step,
    `closure` hands forward and backward to `optimizer.step` as LBFGS needs it (not with float16-autocast).
    """

    dtype: Dtype = "float32"
    accumulate: int = 1
    clip: float | None = 1.0
    closure: bool = False
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    scaler: Callable[[], DynamicLossScaler] = DynamicLossScaler
    initial_scale: float = DEFAULT_LOSS_SCALE


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a loop needs, not yet begun. `grad_scaler` is set for float16-autocast alone."""

    model: nn.Module
    optimizer: Optimizer
    batches: Iterable[Batch]
    options: Options = field(default_factory=Options)
    grad_scaler: torch.amp.GradScaler | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step, counted from 1; `loss` is the mean over its micro-batches, unscaled."""

    step: int
    loss: float
    loss_scale: float | None = None


def prepare(
    model: nn.Module, batches: Iterable[Batch], make: Callable[[list[Any]], Optimizer], options: Options | None = None
) -> Run:
    """Cast the model in place as `options.dtype` says and build its optimizer; `make` takes the parameters."""
    options = options or Options()
    if options.dtype in ("float16", "bfloat16"):
        model.to(getattr(torch, options.dtype))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if options.dtype == "float16":
        optimizer = Float16Optimizer(parameters, make, clip=options.clip, scaler=options.scaler())
    else:
        optimizer = make(parameters)
    scaler = None
    if options.dtype == "float16-autocast":
        scaler = torch.amp.GradScaler("cpu", init_scale=options.initial_scale)
    return Run(model=model, optimizer=optimizer, batches=batches, options=options, grad_scaler=scaler)


def train(run: Run) -> Iterator[Step]:
    """Train over the batches once; a Step is yielded after each optimizer step. A last incomplete step is dropped."""
    options, optimizer = run.options, run.optimizer
    scheduler = options.schedule(optimizer) if options.schedule else None
    batches = iter(run.batches)
    run.model.train()
    step = 0
    while len(micro_batches := list(islice(batches, options.accumulate))) == options.accumulate:
        step += 1
        scale = _scale(run)
        loss = _step_by_closure(run, micro_batches) if options.closure else _step(run, micro_batches)
        skipped = isinstance(optimizer, Float16Optimizer) and optimizer.overflow
        if run.grad_scaler is not None:
            skipped = run.grad_scaler.get_scale() < (scale or 0.0)
        if scheduler is not None and not skipped:
            scheduler.step()
        yield Step(step=step, loss=loss, loss_scale=scale)


def _step(run: Run, micro_batches: list[Batch]) -> float:
    loss = _forward_backward(run, micro_batches)
    if run.grad_scaler is None:
        _clip(run)
        run.optimizer.step()
    else:
        run.grad_scaler.unscale_(run.optimizer)
        _clip(run)
        run.grad_scaler.step(run.optimizer)
        run.grad_scaler.update()
    run.optimizer.zero_grad()
    return loss


def _step_by_closure(run: Run, micro_batches: list[Batch]) -> float:
    def closure() -> float:
        run.optimizer.zero_grad()
        loss = _forward_backward(run, micro_batches)
        _clip(run)
        return loss

    return run.optimizer.step(closure)  # pyright: ignore[reportReturnType]


def _forward_backward(run: Run, micro_batches: list[Batch]) -> float:
    total = 0.0
    for batch in micro_batches:
        with _autocast(run.options.dtype):
            loss: Tensor = run.model(**batch).loss / len(micro_batches)
        if isinstance(run.optimizer, Float16Optimizer):
            run.optimizer.backward(loss)
        elif run.grad_scaler is not None:
            run.grad_scaler.scale(loss).backward()
        else:
            loss.backward()
        total += loss.item()
    return total


def _autocast(dtype: str) -> AbstractContextManager[Any]:
    name, _, autocast = dtype.partition("-")
    return torch.autocast("cpu", dtype=getattr(torch, name)) if autocast else nullcontext()


def _clip(run: Run) -> None:
    """Float16Optimizer clips for itself, after unscaling."""
    if run.options.clip is not None and not isinstance(run.optimizer, Float16Optimizer):
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.options.clip)


def _scale(run: Run) -> float | None:
    if isinstance(run.optimizer, Float16Optimizer):
        return run.optimizer.loss_scale
    return run.grad_scaler.get_scale() if run.grad_scaler is not None else None

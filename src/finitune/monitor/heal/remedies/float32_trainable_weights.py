"""Trained weights in half precision get float32 copies that the optimizer steps; the weights are those copies, rounded.

The copies begin with the weights as they are, the moments continue in float32. What the forward computes with, and what
a checkpoint holds, keeps its dtype. Needs: one process, a torch optimizer, and room for the copies. Price: 4 bytes per
weight for its copy and 2 more for each moment, and one cast each way per step. Undo: the moments are rounded again, and
the weights stay those that were rounded last.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.heal.around_steps import AroundSteps
from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.float32_forward import HALF
from finitune.monitor.probes.optimizers import innermost, parameters_of
from finitune.monitor.replay.arms import optimizer_float32, update_times
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.replay.rounding import MOMENTS, no_room
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    optimizer: Any = innermost(case.watched.optimizer())
    if not str(type(optimizer).step.__module__).startswith("torch.optim."):
        raise Unable(f"{type(optimizer).__name__} is none of torch's, and may keep copies of its own")
    chosen = [p for p in parameters_of(optimizer) if p.dtype in HALF]
    if not chosen:
        raise Unable("no weight in half precision is trained")
    why = no_room(optimizer, case.watched.model)
    if why is not None:
        raise Unable(why)
    needed = sum(p.numel() for p in chosen) * (4 + 2 * MOMENTS)
    return Cure(
        text=f"{counted(len(chosen), 'tensor')} stepped as float32 copies from now on",
        price=f"{needed / 2**20:.3g} MiB",
        targets=frozenset({"float32 copies"}),
        change=optimizer_float32,
        placebo=_as_they_are,
        instead="the weights as they are",
        apply=lambda: Masters(optimizer, chosen).removed,
        patch={"dtype": "float32"},
    )


def _as_they_are(setting: Setting) -> AbstractContextManager[None]:
    return update_times(setting, "1")


class Masters(AroundSteps):
    """Float32 copies of `parameters` while a step of the optimizer runs, from now on until they are `removed`."""

    def __init__(self, optimizer: Any, parameters: list[nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._masters = {p: p.detach().float() for p in parameters}
        self._own: list[tuple[nn.Parameter, Tensor, Tensor | None]] = []
        self._cast_moments(HALF, torch.float32)
        super().__init__(optimizer)

    def removed(self) -> None:
        super().removed()
        self._cast_moments((torch.float32,), None)

    @torch.no_grad()
    def begin(self) -> None:
        for p, master in self._masters.items():
            weight, gradient = p.data, p.grad
            if not torch.equal(master.to(weight.dtype), weight):
                master.copy_(weight)  # the program has written to it
            self._own.append((p, weight, gradient))
            p.grad = None
            p.data = master
            p.grad = None if gradient is None else gradient.float()

    @torch.no_grad()
    def end(self) -> None:
        for p, weight, gradient in self._own:
            p.grad = None
            p.data = weight.copy_(p.data)
            p.grad = gradient
        self._own = []

    def _cast_moments(self, those: tuple[torch.dtype, ...], dtype: torch.dtype | None) -> None:
        """`dtype` None: that of the weight."""
        for p in self._masters:
            for name, value in self._optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor) and value.dtype in those and value.shape == p.shape:
                    self._optimizer.state[p][name] = value.to(dtype or p.dtype)

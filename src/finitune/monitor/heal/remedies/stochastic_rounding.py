"""Each tensor in bfloat16 is stepped by itself in float32, and rounded back up or down by chance.

For weights whose updates round away, where float32 copies of all of them do not fit. Needs: one process, a torch
optimizer, and room for one tensor at a time. Price: weight, gradient and moments of one tensor in float32 while it is
stepped, a random number for each element, and no optimizer kernel over several tensors. Undo: the optimizer steps them
as before; weights and moments stay those that were rounded last.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from finitune.monitor.heal.around_steps import AroundSteps
from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.probes.optimizers import innermost, parameters_of
from finitune.monitor.replay.arms import rounded_by_chance, rounded_to_nearest
from finitune.monitor.replay.rounding import MOMENTS, ByChance, step_alone
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    optimizer: Any = innermost(case.watched.optimizer())
    if not str(type(optimizer).step.__module__).startswith("torch.optim.") or case.watched.before is not None:
        raise Unable(f"{type(optimizer).__name__} does not step one tensor at a time")
    chosen = [p for p in parameters_of(optimizer) if str(p.dtype) == "torch.bfloat16"]
    if not chosen:
        raise Unable("no weight in bfloat16 is trained")
    largest = max(p.numel() for p in chosen) * 4 * (2 + MOMENTS)
    return Cure(
        text=f"{counted(len(chosen), 'tensor')} stepped one by one in float32 and rounded by chance from now on",
        price=f"{largest / 2**20:.3g} MiB while a tensor is stepped, a random number for each weight",
        targets=frozenset({"rounding"}),
        change=rounded_by_chance,
        placebo=rounded_to_nearest,
        instead="the same rounded to the nearest",
        apply=lambda: Rounded(optimizer, chosen).removed,
    )


class Rounded(AroundSteps):
    """Steps of the optimizer, from now on until they are `removed`, with these parameters rounded by chance."""

    def __init__(self, optimizer: Any, parameters: list[nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._rounding = ByChance()
        self._own: list[tuple[nn.Parameter, Tensor]] = []
        super().__init__(optimizer)

    def begin(self) -> None:
        """The step itself finds no gradient of these parameters."""
        self._rounding.turn += 1
        for place, p in enumerate(self._parameters):
            if p.grad is not None:
                step_alone(self._optimizer, p, place << 4, self._rounding)
                self._own.append((p, p.grad))
                p.grad = None

    def end(self) -> None:
        for p, gradient in self._own:
            p.grad = gradient
        self._own = []

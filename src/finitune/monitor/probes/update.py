"""That which turns gradients into new weights, as the gate needs it: a torch optimizer, or DeepSpeed's around one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from finitune.monitor.probes import deepspeed
from finitune.monitor.probes.optimizers import BeforeStep, TorchUpdate, innermost


class Update(Protocol):
    """What the gate asks of an optimizer, and how it prevents one step of it."""

    optimizer: Any
    """On which the training loop calls `step`."""

    @property
    def sharded(self) -> bool:
        """True when this rank's gradients are a part of the whole only."""
        ...

    @property
    def skips_overflows(self) -> bool:
        """True when it scales the loss itself and skips a step whose gradients are not finite."""
        ...

    @property
    def skipped(self) -> bool:
        """True when it skipped the step that it was asked for last."""
        ...

    @property
    def loss_scale(self) -> float | None:
        """The scale that its gradients carry; None where the training loop multiplies the loss, if anyone does."""
        ...

    def parameters(self) -> list[nn.Parameter]: ...

    def gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        """What the next step would use: each gradient, or this rank's part of it, with its parameter."""
        ...

    def listen(self, before: Callable[..., Any], after: Callable[..., Any], dropping: Callable[[], Any]) -> None:
        """Call `before(optimizer, args, kwargs)` and `after(...)` around every step as torch's step hooks do, and
        `dropping()` before gradients are set to zero.
        """
        ...

    def leave(self) -> None: ...

    def withhold(self) -> None:
        """Let the step that is about to run change nothing: no weight, no moment, no count."""
        ...

    def give_back(self) -> None: ...

    def save(self, directory: Path) -> None:
        """Write beside the last good weights what only the framework itself can load. All ranks call it."""
        ...

    def before_step(self, step: int) -> BeforeStep | None:
        """A copy of weights and state where the step itself may spoil them, else None."""
        ...


def update_of(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Update]:
    """The user's own model, and the update that `optimizer` makes to it; wrappers around both are taken off."""
    engine = model if deepspeed.is_engine(model) else None
    if engine is not None:
        model, optimizer = engine.module, engine.optimizer or optimizer  # pyright: ignore[reportAssignmentType]
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # run again, the wrapper would start its collectives
    optimizer = innermost(optimizer)
    if deepspeed.is_own_optimizer(optimizer):
        return model, deepspeed.DeepSpeedUpdate(model, optimizer, engine)
    return model, TorchUpdate(optimizer)

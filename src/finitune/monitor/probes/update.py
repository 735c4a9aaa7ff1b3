"""What turns gradients into new weights, as the gate needs it: a torch optimizer, DeepSpeed's, or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from finitune.monitor.probes import deepspeed
from finitune.monitor.probes.foreign import ForeignUpdate, is_foreign
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.probes.optimizers import BeforeStep, TorchUpdate, innermost


class Update(Protocol):
    """What the gate asks of an optimizer, and how it prevents one step of it. Keeps no optimizer alive."""

    engine: Any
    """DeepSpeed's, else None."""

    @property
    def optimizer(self) -> Any:
        """On which the training loop calls `step`."""
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

    @property
    def scaler_decides(self) -> bool:
        """True when a GradScaler has handed it a verdict, and will lower its scale if that is bad."""
        ...

    @property
    def gradients_are_scaled(self) -> bool:
        """True when it takes the loss scale off its gradients by itself."""
        ...

    @property
    def takes_flag(self) -> bool:
        """True when its next step can be discarded on the device, with nothing to wait for."""
        ...

    def parameters(self) -> list[nn.Parameter]: ...

    def gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        """What the next step would use: each gradient, or this rank's part of it, with its parameter."""
        ...

    def discard_on_device(self, flag: Tensor) -> None:
        """Let the step that is about to run change nothing where `flag`, shape [], is 1."""
        ...

    def withhold(self) -> None:
        """Let the step that is about to run change nothing: no weight, no moment, no count."""
        ...

    def restore_gradients(self) -> None:
        """Undo `withhold` and `discard_on_device` after the step."""
        ...

    def save(self, directory: Path) -> None:
        """Write beside the last good weights what only the framework itself can load. All ranks call it."""
        ...

    def before_step(self) -> BeforeStep | None:
        """A copy of weights and state where the step itself may spoil them, else None."""
        ...


def update_of(optimizer: Any, model: nn.Module | None = None) -> Update:
    """The update that `optimizer` makes; `model` may be the DeepSpeed engine around it."""
    engine = model if model is not None and deepspeed.is_engine(model) else None
    optimizer = innermost(optimizer if engine is None else engine.optimizer or optimizer)
    if deepspeed.is_own_optimizer(optimizer):
        inside: Any = engine.module if engine is not None else model
        return deepspeed.DeepSpeedUpdate(unwrapped(inside) if inside is not None else None, optimizer, engine)
    return ForeignUpdate(optimizer) if is_foreign(optimizer) else TorchUpdate(optimizer)


def why_not_by_hand(update: Update) -> str | None:
    """Why no step can be taken with gradients that were computed anew; None where the optimizer computes with weights,
    gradients and its state alone.
    """
    if isinstance(update, deepspeed.DeepSpeedUpdate):
        return update.why_not_by_hand
    if type(update) is TorchUpdate and str(type(update.optimizer).step.__module__).startswith("torch.optim."):
        return None
    return f"{type(update.optimizer).__name__} computes its update from more than the gradients"

"""A torch optimizer as the gate needs it: its gradients, its loss scale, and how one step of it is prevented."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.ranks import is_spread


def innermost(optimizer: Any) -> Any:
    """Accelerate wraps the optimizer that is stepped; DeepSpeed's own, which knows of overflows, is not taken off."""
    while not hasattr(optimizer, "overflow") and (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def learning_rate(optimizer: Any) -> float | None:
    """The largest over groups."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    return max(rates) if rates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradScalerInside:
    """A fused optimizer takes the GradScaler's verdict into its kernel, as attributes set for the time of one step."""

    decides: bool
    """The scaler has looked for overflow and will lower its scale if there was one."""
    scaled: bool
    """The gradients still carry the loss scale."""

    @staticmethod
    def of(optimizer: Any) -> GradScalerInside:
        return GradScalerInside(
            decides=getattr(optimizer, "found_inf", None) is not None,
            scaled=getattr(optimizer, "grad_scale", None) is not None,
        )


FEW = 3
SMALL_BYTES = 256 * 2**20
"""A copy of all weights is made before the first few steps of a float16 optimizer, of small ones before every step."""


class TorchUpdate:
    """Any torch optimizer; see `finitune.monitor.probes.update.Update`.

    A step is prevented by taking the gradients away and giving them back: an optimizer skips parameters without a
    gradient, so weights, moments and step counts stay bit for bit, in every dtype. Nothing is multiplied.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.sharded = is_spread(self.parameters())
        self._taken: list[tuple[nn.Parameter, Tensor]] = []
        self._handles: list[Any] = []

    @property
    def skips_overflows(self) -> bool:
        """True for half-precision optimizers as Apex builds them."""
        return hasattr(self.optimizer, "loss_scale") and hasattr(self.optimizer, "overflow")

    @property
    def skipped(self) -> bool:
        return bool(getattr(self.optimizer, "overflow", False))

    @property
    def loss_scale(self) -> float | None:
        return float(self.optimizer.loss_scale) if self.skips_overflows else None

    def parameters(self) -> list[nn.Parameter]:
        return parameters_of(self.optimizer)

    def gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        return [(p, p.grad) for p in self.parameters() if p.grad is not None]

    def listen(self, before: Callable[..., Any], after: Callable[..., Any], dropping: Callable[[], Any]) -> None:
        optimizer = self.optimizer
        zero_grad = optimizer.zero_grad

        def observed_zero_grad(*args: Any, **kwargs: Any) -> None:
            dropping()
            zero_grad(*args, **kwargs)

        observed_zero_grad.__wrapped__ = zero_grad  # pyright: ignore[reportFunctionMemberAccess]
        optimizer.zero_grad = observed_zero_grad
        self._handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._handles:
            del self.optimizer.zero_grad
        self._handles = []

    def withhold(self) -> None:
        for p, gradient in self.gradients():
            self._taken.append((p, gradient))
            p.grad = None

    def give_back(self) -> None:
        for p, gradient in self._taken:
            p.grad = gradient
        self._taken.clear()

    def save(self, directory: Path) -> None:
        pass  # parameters and moments have names, so safetensors hold them

    def before_step(self, step: int) -> BeforeStep | None:
        """LBFGS moves the weights between the evaluations of its closure. An optimizer whose parameters and moments
        are float16 divides by an eps that is zero there, from its first steps on.
        """
        if isinstance(self.optimizer, torch.optim.LBFGS):
            return BeforeStep(self.optimizer)
        half = [p for p in self.parameters() if p.dtype == torch.float16]
        if not half or self.skips_overflows or self.sharded:
            return None
        small = sum(p.nbytes for p in half) <= SMALL_BYTES
        return BeforeStep(self.optimizer) if small or step <= FEW else None


class BeforeStep:
    """Copies of weights and optimizer state before a step that may have to be taken back."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._weights = [(p, p.detach().clone()) for p in parameters_of(optimizer)]
        self._state = {p: copy.deepcopy(entries) for p, entries in optimizer.state.items()}

    def restore(self) -> None:
        with torch.no_grad():
            for p, saved in self._weights:
                p.copy_(saved)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

    def spoiled(self) -> list[nn.Parameter]:
        """Parameters which the step made non-finite, themselves or in their state."""
        entries = self._optimizer.state
        return [
            p
            for p, _ in self._weights
            if not all(map(is_finite, [p, *(v for v in entries.get(p, {}).values() if isinstance(v, Tensor))]))
        ]

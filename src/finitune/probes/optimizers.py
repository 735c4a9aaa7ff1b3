"""What can be asked of any optimizer, and how one step of it is prevented."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from finitune.probes.finite import is_finite
from finitune.probes.ranks import is_spread


def innermost(optimizer: Any) -> Any:
    """Accelerate wraps the optimizer that holds the parameters and the hooks."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients_of(optimizer: Any) -> list[Tensor]:
    return [p.grad for p in parameters_of(optimizer) if p.grad is not None]


def learning_rate(optimizer: Any) -> float | None:
    """The largest over groups."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    return max(rates) if rates else None


def scales_itself(optimizer: Any) -> bool:
    """True for half-precision optimizers as DeepSpeed and Apex build them: they scale the loss and skip overflows."""
    return hasattr(optimizer, "loss_scale") and hasattr(optimizer, "overflow")


def loss_scale_of(optimizer: Any) -> float | None:
    return float(optimizer.loss_scale) if scales_itself(optimizer) else None


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


class Withheld:
    """Takes the gradients away for one step and gives them back.

    An optimizer skips parameters without a gradient: weights, moments and step counts stay bit for bit, in every
    dtype. Nothing is multiplied.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[nn.Parameter, Tensor]] = []

    def take(self, parameters: Iterable[nn.Parameter]) -> None:
        for p in parameters:
            if p.grad is not None:
                self._taken.append((p, p.grad))
                p.grad = None

    def give_back(self) -> None:
        for p, gradient in self._taken:
            p.grad = gradient
        self._taken.clear()


FEW = 3
SMALL_BYTES = 256 * 2**20
"""A copy of all weights is made before the first few steps of a float16 optimizer, of small ones before every step."""


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


def before_step(optimizer: Any, step: int) -> BeforeStep | None:
    """A copy where the step itself may go wrong although loss and gradients are finite, else None.

    LBFGS moves the weights between the evaluations of its closure. An optimizer whose parameters and moments are
    float16 divides by an eps that is zero there, from its first steps on.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        return BeforeStep(optimizer)
    half = [p for p in parameters_of(optimizer) if p.dtype == torch.float16]
    if not half or scales_itself(optimizer) or is_spread(half):
        return None
    small = sum(p.nbytes for p in half) <= SMALL_BYTES
    return BeforeStep(optimizer) if small or step <= FEW else None

"""What can be asked of any optimizer, and how one step of it is prevented."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


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


class BeforeLineSearch:
    """Weights and state before LBFGS, which moves the weights between the evaluations of its closure."""

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


def before_line_search(optimizer: Any) -> BeforeLineSearch | None:
    return BeforeLineSearch(optimizer) if isinstance(optimizer, torch.optim.LBFGS) else None

"""A torch optimizer as the gate needs it: its gradients, its loss scale, and how one step of it is prevented."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes import adam_update
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.optimizer_state import StateKept, are_small, can_be_put_back, is_plain, leaves_kept

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD)
"""Their fused kernels leave everything as it is where `found_inf` is 1."""
MOST_WRAPPERS = 8
MOST_KEPT = 2**24
"""Bytes of weights and state that are copied before each step of an optimizer whose arithmetic is not known."""


def innermost(optimizer: Any) -> Any:
    """Accelerate wraps the optimizer that is stepped; DeepSpeed's own, which knows of overflows, is not taken off."""
    for _ in range(MOST_WRAPPERS):  # one that stands for itself has no innermost
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or hasattr(optimizer, "overflow"):
            break
        optimizer = inner
    return optimizer


def each_parameter(optimizer: Any) -> Iterator[nn.Parameter]:
    """Where the first few decide, the others are not touched: they lie in no cache after a backward."""
    return chain.from_iterable(group["params"] for group in getattr(optimizer, "param_groups", None) or ())


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return list(each_parameter(optimizer))


def learning_rate(optimizer: Any) -> Tensor | float | None:
    """The largest over groups, or one that is not finite; a tensor where a group keeps it as one, which reading would
    wait for. A complex one is none: torch refuses it.
    """
    groups = [group for group in getattr(optimizer, "param_groups", ()) if "lr" in group]
    rates = [group["lr"] for group in groups if not isinstance(group["lr"], complex)]
    tensors = [rate for rate in rates if isinstance(rate, Tensor)]
    if tensors:
        return torch.stack([rate.detach().reshape(()).to(tensors[0].device) for rate in tensors]).max()
    numbers = [float(rate) for rate in rates]
    return next((rate for rate in numbers if not math.isfinite(rate)), max(numbers, default=None))


def will_spoil(optimizer: Any, rate: Tensor | float | None, *, half: bool = True) -> Tensor | float | None:
    """Whether the update that is about to be made of finite gradients is not finite: 1 or 0, on the device where it
    depends on what lies there; None where nothing speaks of it. `rate` is the learning rate, `half` says whether a
    gradient may be float16.
    """
    known = adam_update.spoils(optimizer, half=half)
    if isinstance(rate, Tensor):
        bad = ~torch.isfinite(rate).reshape(())
        return bad if known is None else bad | known.to(bad.device)
    return 1.0 if rate is not None and not math.isfinite(rate) else known


@contextmanager
def fresh_state(optimizer: Any, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """For a while the optimizer remembers nothing of these parameters."""
    own = {p: optimizer.state.pop(p) for p in parameters if p in optimizer.state}
    try:
        yield
    finally:
        for p, entries in own.items():
            optimizer.state[p] = entries


def skips_whole_call(optimizer: Any) -> bool:
    """True for an optimizer whose step is not called at all when it is discarded.

    torch's own leave everything as it is where no parameter has a gradient. Others count steps in their groups, or
    take a missing gradient for zero.
    """
    return not str(type(optimizer).step.__module__).startswith("torch.optim.")


def may_spoil(optimizer: Any) -> bool:
    """True where finite gradients do not make sure of a finite update: its arithmetic is not torch's, or divides by
    what may be zero.
    """
    groups = getattr(optimizer, "param_groups", ())
    return skips_whole_call(optimizer) or any(map(adam_update.divides_by_zero, groups))


def may_make_nan(optimizer: Any, parameter: Tensor) -> bool:
    """Whether its arithmetic may have made the NaN in a parameter of a finite gradient: that of torch's commonest would
    have left infinities there, or in its state, but for half precision and for what divides by zero.
    """
    if type(optimizer) not in FUSED or may_spoil(optimizer) or parameter.element_size() < 4:
        return True
    state = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
    return bool(torch.isinf(parameter).any()) or not are_finite(state)


class TorchUpdate:
    """Any torch optimizer; see `finitune.monitor.probes.update.Update`.

    A step is prevented on the device by `found_inf`, or by taking the gradients away and giving them back: weights,
    moments and step counts stay bit for bit, in every dtype. Nothing is multiplied.
    """

    engine: Any = None

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._stashed: list[tuple[nn.Parameter, Tensor]] = []
        self._own_flag = False
        self._flag_before: Tensor | None = None

    @property
    def optimizer(self) -> Any:
        return self._optimizer()

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

    @property
    def scaler_decides(self) -> bool:
        """A GradScaler hands its verdict to a fused kernel, as attributes set for the time of one step."""
        return getattr(self.optimizer, "found_inf", None) is not None and not self._own_flag

    @property
    def gradients_are_scaled(self) -> bool:
        return getattr(self.optimizer, "grad_scale", None) is not None

    @property
    def takes_flag(self) -> bool:
        """True where the step can be discarded on the device, with nothing to wait for.

        Not before every parameter has its state: a first step that is skipped would leave the momentum of the fused
        SGD as it was allocated.
        """
        optimizer = self.optimizer
        if type(optimizer) not in FUSED or not all(group.get("fused") for group in optimizer.param_groups):
            return False
        trained = [p for p in self.parameters() if p.grad is not None]
        if not trained or any(p.device.type == "cpu" or p.is_sparse for p in trained):
            return False
        plain_sgd = type(optimizer) is torch.optim.SGD and not any(
            group["momentum"] for group in optimizer.param_groups
        )
        return plain_sgd or all(_has_state(optimizer.state.get(p)) for p in trained)

    def parameters(self) -> list[nn.Parameter]:
        return parameters_of(self.optimizer)

    def gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        return [(p, gradient) for p in self.parameters() if (gradient := p.grad) is not None]

    def discard_on_device(self, flag: Tensor) -> None:
        """The step that is about to run changes nothing where `flag`, shape [], is 1; a scaler's verdict is joined."""
        optimizer = self.optimizer
        self._flag_before = getattr(optimizer, "found_inf", None)
        if self._flag_before is not None:
            flag = torch.maximum(self._flag_before.to(flag.device, flag.dtype).reshape(()), flag)
        optimizer.found_inf, self._own_flag = flag, True

    def withhold(self) -> None:
        for p, gradient in self.gradients():
            self._stashed.append((p, gradient))
            p.grad = None

    def restore_gradients(self) -> None:
        for p, gradient in self._stashed:
            p.grad = gradient
        self._stashed.clear()
        if self._own_flag:
            self._own_flag = False
            if self._flag_before is None:
                del self.optimizer.found_inf
            else:
                self.optimizer.found_inf = self._flag_before

    def save(self, directory: Path) -> None:
        pass  # parameters and moments have names, so safetensors hold them

    def before_step(self) -> BeforeStep | None:
        """LBFGS moves the weights between the evaluations of its closure, so they are copied before; others may too."""
        moves = isinstance(self.optimizer, torch.optim.LBFGS)
        return (BeforeStep if moves else kept_before)(self.optimizer, each_parameter(self.optimizer))


class BeforeStep:
    """Copies of weights and optimizer state before a step that may have to be taken back."""

    def __init__(self, optimizer: Any, parameters: Iterable[Any]) -> None:
        self._weights = [(p, p.detach().clone()) for p in parameters]
        self.gradients: list[tuple[Any, Tensor]] = []
        """Copies for a step that writes to them, which `restore` leaves as they are."""
        self._versions: list[tuple[Tensor, int]] = []
        self._state = StateKept(optimizer)
        groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
        self._numbers = [
            (group, {name: value for name, value in group.items() if isinstance(value, int | float)})
            for group in groups
        ]

    def look_at_gradients(self, *, copied: bool) -> None:
        """Whether the step will write to them is seen after it."""
        held = [(p, gradient) for p, _ in self._weights if (gradient := p.grad) is not None]
        self._versions = [(gradient, gradient._version) for _, gradient in held]
        self.gradients = [(p, gradient.detach().clone()) for p, gradient in held] if copied else []

    @property
    def has_written_gradients(self) -> bool:
        return any(gradient._version != version for gradient, version in self._versions)

    def restore(self) -> None:
        with torch.no_grad():
            for p, saved in self._weights:
                p.copy_(saved)
        self._state.restore()
        for group, numbers in self._numbers:
            group.update(numbers)

    def spoilt(self) -> list[nn.Parameter]:
        """Parameters that were finite, and that the step made non-finite. What its state holds is its own business: an
        infinite bound is none that is damaged.
        """
        if are_finite([p.detach() for p, _ in self._weights]):
            return []
        return [p for p, saved in self._weights if are_finite([saved]) and not are_finite([p.detach()])]


def kept_before(optimizer: Any, parameters: Iterable[Any]) -> BeforeStep | None:
    """Copies before a step that finite gradients do not make sure of; None where nothing speaks for one: more than
    `MOST_KEPT`, or state that is no tensors and numbers. On a GPU whether they are needed is one more read in the step.
    """
    if not (may_spoil if isinstance(optimizer, torch.optim.Optimizer) else can_be_put_back)(optimizer):
        return None
    kept, parameters = leaves_kept(optimizer), list(parameters)
    held = {id(t): t for t in (*parameters, *kept) if isinstance(t, Tensor)}
    can = all(map(is_plain, kept)) and are_small(list(held.values()), MOST_KEPT)
    return BeforeStep(optimizer, parameters) if can else None


def _has_state(entries: Any) -> bool:
    if not entries:
        return False
    buffer = entries.get("momentum_buffer", False)
    return buffer is not None

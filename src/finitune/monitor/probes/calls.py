"""See the calls that a training loop makes into torch: backward, clipping, GradScaler.step, LRScheduler.step.

Observed at the one place through which every caller goes, and put back when the last listener leaves.
A listener that raises is reported once through its own `broken` and never disturbs the call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad


class Listener(Protocol):
    """What the monitor offers to be told."""

    def before_backward(self, roots: list[Tensor]) -> None: ...
    def after_total_norm(self, norm: Tensor, count: int) -> None: ...
    def before_value_clip(self) -> None: ...
    def after_scaler_step(self, scaler: Any, optimizer: Any) -> None: ...
    def scheduler_may_step(self, scheduler: Any) -> bool: ...
    def broken(self, error: BaseException) -> None: ...


_listeners: list[Listener] = []
_originals: dict[str, Callable[..., Any]] = {}
_schedule_steps: dict[type, Callable[..., Any]] = {}
_stepping: list[Any] = []
"""The schedule whose step runs now; what it calls on the way, another schedule or its parent class, is part of it."""


def listen(listener: Listener) -> None:
    """Tell `listener` of every call from now on."""
    if not _listeners:
        _install()
    _listeners.append(listener)


def leave(listener: Listener) -> None:
    """Stop telling `listener`; the last one to leave restores torch as it was."""
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners:
            _restore()


def _tell(method: str, *args: Any) -> None:
    for listener in _listeners:
        try:
            getattr(listener, method)(*args)
        except Exception as error:
            listener.broken(error)


def _install() -> None:
    _originals["backward"] = torch.autograd.backward
    _originals["total_norm"] = clip_grad._get_total_norm
    _originals["group"] = clip_grad._group_tensors_by_device_and_dtype
    _originals["scaler_step"] = torch.amp.GradScaler.step

    @functools.wraps(torch.autograd.backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        _tell("before_backward", [tensors] if isinstance(tensors, Tensor) else list(tensors))
        _originals["backward"](tensors, *args, **kwargs)

    @functools.wraps(clip_grad._get_total_norm)
    def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        norm = _originals["total_norm"](tensors, *args, **kwargs)
        _tell("after_total_norm", norm, len(tensors))
        return norm

    # clip_grad_value_ itself is often imported by name before anybody listens; this is the first thing it calls.
    @functools.wraps(clip_grad._group_tensors_by_device_and_dtype)
    def group(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "clip_grad_value_":
            _tell("before_value_clip")
        return _originals["group"](*args, **kwargs)

    @functools.wraps(torch.amp.GradScaler.step)
    def scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = _originals["scaler_step"](self, optimizer, *args, **kwargs)
        _tell("after_scaler_step", self, optimizer)
        return result

    torch.autograd.backward = backward
    clip_grad._get_total_norm = total_norm
    clip_grad._group_tensors_by_device_and_dtype = group
    torch.amp.GradScaler.step = scaler_step
    for kind in _schedules():
        _schedule_steps[kind] = kind.step
        kind.step = _asking_first(kind.step)


def _schedules() -> list[Any]:
    """LRScheduler and the classes derived from it that step in a way of their own; a plateau has no schedule."""
    kinds: list[Any] = [torch.optim.lr_scheduler.LRScheduler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    return [kind for kind in dict.fromkeys(kinds) if "step" in vars(kind) and not issubclass(kind, plateau)]


def _asking_first(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def scheduler_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        answers = [] if _stepping else [_may_step(listener, self) for listener in _listeners]
        if not all(answers):
            return None
        _stepping.append(self)
        try:
            return step(self, *args, **kwargs)
        finally:
            _stepping.pop()

    return scheduler_step


def _may_step(listener: Listener, scheduler: Any) -> bool:
    try:
        return listener.scheduler_may_step(scheduler)
    except Exception as error:
        listener.broken(error)
        return True


def _restore() -> None:
    torch.autograd.backward = _originals.pop("backward")
    clip_grad._get_total_norm = _originals.pop("total_norm")
    clip_grad._group_tensors_by_device_and_dtype = _originals.pop("group")
    torch.amp.GradScaler.step = _originals.pop("scaler_step")
    for kind, step in _schedule_steps.items():
        kind.step = step  # pyright: ignore[reportAttributeAccessIssue]
    _schedule_steps.clear()

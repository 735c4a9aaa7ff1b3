"""See every `step` of an optimizer, of whatever class, right before and after it.

torch's own optimizers are seen by torch's global step hooks. The `step` of other classes is observed on the class,
where a step that is discarded need not be called at all. No instance is changed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from finitune.monitor.probes.torch_calls import unobservable

SKIP = object()
"""What `step_begins` returns where the step must not be called."""
UNWATCHED = object()
"""What it returns for an optimizer that is none of the monitor's."""


class Listener(Protocol):
    """What the monitor offers to hear of. `step_begins` returns SKIP, UNWATCHED, new (args, kwargs) without self, or
    None.

    Both may raise what is meant to end the run; every other exception of ours stays inside.
    """

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, skippable: bool) -> Any: ...
    def step_ended(self, optimizer: Any, *, failed: bool) -> None: ...
    def trial(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[None]: ...


_listener: list[Listener] = []
_handles: list[Any] = []
_observed: dict[type, Any] = {}


class _Stepping(threading.local):
    """The watched optimizer whose step runs in this thread: what it steps on the way is part of it."""

    optimizer: Any = None


_now = _Stepping()


def listen(listener: Listener) -> None:
    _listener[:] = [listener]
    _handles[:] = [register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)]


def leave() -> None:
    for handle in _handles:
        handle.remove()
    _handles.clear()
    _listener.clear()
    for kind, own in _observed.items():
        if own is None:
            del kind.step  # pyright: ignore[reportAttributeAccessIssue]
        else:
            kind.step = own  # pyright: ignore[reportAttributeAccessIssue]
    _observed.clear()


def observe_class(kind: type) -> None:
    """Observe the `step` of `kind` on the class."""
    if kind in _observed:
        return
    _observed[kind] = vars(kind).get("step")
    kind.step = _observing(kind.step)  # pyright: ignore[reportAttributeAccessIssue]


def _observing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if unobservable() or not _listener or _now.optimizer is not None:
            return original(self, *args, **kwargs)
        listener = _listener[0]
        answer = listener.step_begins(self, args, kwargs, skippable=True)
        if answer is UNWATCHED:
            with listener.trial(self, args, kwargs):
                return original(self, *args, **kwargs)
        failed, _now.optimizer = True, self
        try:
            if answer is SKIP:
                failed = False
                return None
            args, kwargs = (args, kwargs) if answer is None else answer
            out = original(self, *args, **kwargs)
            failed = False
            return out
        finally:
            _now.optimizer = None
            listener.step_ended(self, failed=failed)

    return step


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the step was given to evaluate the loss with; None where that is nothing that can be called."""
    given = kwargs.get("closure", args[0] if args else None)
    return given if callable(given) else None


def _before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if unobservable() or not _listener or _now.optimizer is not None:
        return None
    itself, *rest = args
    answer = _listener[0].step_begins(optimizer, tuple(rest), kwargs, skippable=False)
    if answer is UNWATCHED:
        return None
    _now.optimizer = optimizer
    return None if answer is None else ((itself, *answer[0]), answer[1])


def _after(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    if not unobservable() and _listener and _now.optimizer is optimizer:
        _now.optimizer = None
        _listener[0].step_ended(optimizer, failed=False)


def stepping() -> Any:
    """The watched optimizer whose step has begun in this thread and was not seen to end; None where there is none."""
    return _now.optimizer


def interrupted() -> Any:
    """The optimizer whose step raised, so that its end was not seen; it is forgotten."""
    optimizer, _now.optimizer = _now.optimizer, None
    return optimizer

"""See every `step` of an optimizer, of whatever class, right before and after it.

torch's own optimizers are seen by torch's global step hooks. Where the program has step hooks too, hooks of ours stand
next to the step for as long as it takes: what the program's change is judged, and gradients that are withheld are
there again when they are called. The `step` of other classes is observed on the class, where a step that is discarded
need not be called at all. No instance is changed for longer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

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

    @property
    def heals(self) -> bool: ...
    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, skippable: bool) -> Any: ...
    def step_ended(self, optimizer: Any, *, failed: bool) -> None: ...
    def trial(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[None]: ...


_listener: list[Listener] = []
_handles: list[Any] = []
_observed: dict[tuple[type, str], Any] = {}


class _Stepping(threading.local):
    """The watched optimizer whose step runs in this thread: what it steps on the way is part of it."""

    optimizer: Any = None
    beside: tuple[Any, ...] = ()
    """Handles of hooks that stand next to the step that runs."""


_now = _Stepping()


def listen(listener: Listener) -> None:
    _listener[:] = [listener]
    _handles[:] = [register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)]


def leave() -> None:
    for handle in _handles:
        handle.remove()
    _handles.clear()
    _listener.clear()
    for (kind, method), own in _observed.items():
        if own is None:
            delattr(kind, method)
        else:
            setattr(kind, method, own)
    _observed.clear()
    _leave_step()


def observe_class(kind: type, method: str = "step") -> None:
    """Observe the `step` of `kind` on the class, or what stands for it."""
    if (kind, method) in _observed:
        return
    _observed[kind, method] = vars(kind).get(method)
    setattr(kind, method, _observing(getattr(kind, method)))


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
    _leave_step()
    if not has_hooks(optimizer) or _listener[0].heals:  # what heals adds hooks, which cannot be while they are called
        return _begin(optimizer, args, kwargs)
    last, first = optimizer.register_step_pre_hook(_begin), optimizer.register_step_post_hook(_end)
    optimizer._optimizer_step_post_hooks.move_to_end(first.id, last=False)
    _now.beside = (last, first)
    return None


def has_hooks(optimizer: Any) -> bool:
    """Whether the program has hooks on the steps of this optimizer, or of all."""
    here = [getattr(optimizer, f"_optimizer_step_{when}_hooks", {}) for when in ("pre", "post")]
    hooks = [
        hook for held in (*here, _global_optimizer_pre_hooks, _global_optimizer_post_hooks) for hook in held.values()
    ]
    return any(not (getattr(hook, "__module__", None) or "").startswith("finitune.") for hook in hooks)


def hooks_before(optimizer: Any) -> list[Any]:
    """What is called before each step of this optimizer, but for the hook that judges the step."""
    return [hook for hook in getattr(optimizer, "_optimizer_step_pre_hooks", {}).values() if hook is not _begin]


def _begin(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if unobservable() or not _listener or _now.optimizer is not None:
        return None
    itself, *rest = args
    answer = _listener[0].step_begins(optimizer, tuple(rest), kwargs, skippable=False)
    if answer is UNWATCHED:
        return None
    _now.optimizer = optimizer
    return None if answer is None else ((itself, *answer[0]), answer[1])


def _end(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    if not unobservable() and _listener and _now.optimizer is optimizer:
        _now.optimizer = None
        _listener[0].step_ended(optimizer, failed=False)


def _after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _end(optimizer, args, kwargs)
    if not unobservable() and _now.optimizer is None:
        _leave_step()


def _leave_step() -> None:
    for handle in _now.beside:
        handle.remove()
    _now.beside = ()


def stepping() -> Any:
    """The watched optimizer whose step has begun in this thread and was not seen to end; None where there is none."""
    return _now.optimizer


def interrupted() -> Any:
    """The optimizer whose step raised, so that its end was not seen; it is forgotten."""
    _leave_step()
    optimizer, _now.optimizer = _now.optimizer, None
    return optimizer

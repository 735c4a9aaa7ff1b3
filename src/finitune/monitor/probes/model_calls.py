"""See the calls of a model without touching it: the `__call__` of its class is observed, its instance stays as it is.

No hook lies on the user's modules, so they are pickled, scripted, copied, compiled in one graph and captured in CUDA
graphs as without finitune. A copy of a model is another object, and is not observed.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from typing import Any, Protocol

from torch import nn

from finitune.monitor.probes.redirected_calls import is_redirected
from finitune.monitor.probes.torch_calls import unobservable


class Listener(Protocol):
    """What the monitor offers to hear of. `call_begins` returns a token that `call_ended` gets back."""

    def call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object: ...
    def call_ended(self, token: object, output: Any, *, failed: bool) -> None: ...
    def broken(self, error: BaseException) -> None: ...


_observed: dict[int, weakref.ref[nn.Module]] = {}
_originals: dict[type, Any] = {}
_listener: list[Listener] = []


def observe(listener: Listener, modules: Iterable[nn.Module]) -> None:
    """Report to `listener` the calls of these modules, besides those that are observed already."""
    _listener[:] = [listener]
    for module in modules:
        if id(module) not in _observed or _observed[id(module)]() is not module:
            _observed[id(module)] = weakref.ref(module)
            _wrap(type(module))


def observe_more(modules: Iterable[nn.Module]) -> None:
    """Report the calls of these modules too, to the same listener."""
    if _listener:
        observe(_listener[0], modules)


def observe_deeper(seen: Container[int]) -> None:
    """Report the calls of the modules within those that are observed and whose identity is not in `seen`."""
    blind = [module for known, module in _alive() if known not in seen]
    observe_more(child for module in blind for child in module.children())


def _alive() -> list[tuple[int, nn.Module]]:
    return [(known, module) for known, ref in _observed.items() if (module := ref()) is not None]


def leave() -> None:
    """Observe nothing more; every class is as it was."""
    _listener.clear()
    _observed.clear()
    for kind, own in _originals.items():
        if own is None:
            del kind.__call__
        else:
            kind.__call__ = own
    _originals.clear()


def is_observed(module: nn.Module) -> bool:
    known = _observed.get(id(module))
    return known is not None and known() is module


def _wrap(kind: type) -> None:
    if kind in _originals or not issubclass(kind, nn.Module):
        return
    own: Any = vars(kind).get("__call__")
    above: Any = super

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Under the compiler the first test folds to a constant, so that nothing of this is in its graph.
        if unobservable() or not _listener or not is_observed(self) or is_redirected(self):
            return own(self, *args, **kwargs) if own else above(kind, self).__call__(*args, **kwargs)
        token = _begin(self, args, kwargs)
        output, failed = None, True
        try:
            output = own(self, *args, **kwargs) if own else above(kind, self).__call__(*args, **kwargs)
            failed = False
        finally:
            _end(token, output, failed=failed)
        return output

    _originals[kind] = own
    kind.__call__ = __call__


def _begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    try:
        return _listener[0].call_begins(module, args, kwargs)
    except Exception as error:
        _listener[0].broken(error)
        return None


def _end(token: object, output: Any, *, failed: bool) -> None:
    try:
        if _listener:
            _listener[0].call_ended(token, output, failed=failed)
    except Exception as error:
        _listener[0].broken(error)

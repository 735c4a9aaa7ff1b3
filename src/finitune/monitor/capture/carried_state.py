"""What modules carry from call to call in small buffers and attributes, as it was before a call: a state that runs
on, a moving baseline, a count.

Which those are is learned: what differs between the calls 1, 2, 4, 8... of a module is copied before every later call,
so that a module that carries nothing costs nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from finitune.monitor.probes.module_state import attributes_of, own_modules

SMALL, MOST = 4096, 64
"""Elements of a tensor, and tensors and numbers of one module with all within it, that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One of them: `holder` is the dictionary of buffers or attributes that has it under `name`."""

    holder: dict[str, Any]
    name: str
    value: Any

    def put_back(self) -> None:
        """A copy, which a run may write into."""
        self.holder[self.name] = copied(self.value)


@dataclass(slots=True)
class _Seen:
    """Of one module: how everything stood when it was last looked at, and where something has changed."""

    calls: int = 0
    stood: dict[tuple[int, str], Any] = field(default_factory=dict[tuple[int, str], Any])
    changed: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict[tuple[int, str], dict[str, Any]])


class CarriedStates:
    """Those of all modules that are called."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[nn.Module, _Seen] = WeakKeyDictionary()

    def before(self, module: nn.Module) -> tuple[Carried, ...]:
        """Copies of what the module and those within it carry, before a call of it."""
        seen = self._seen.get(module)
        if seen is None:
            seen = self._seen[module] = _Seen()
        seen.calls += 1
        if seen.calls & (seen.calls - 1) == 0:
            self._learn(module, seen)
        kept = ((holder, name) for (_, name), holder in seen.changed.items() if is_kept(holder.get(name)))
        return tuple(Carried(holder=holder, name=name, value=copied(holder[name])) for holder, name in kept)

    def _learn(self, module: nn.Module, seen: _Seen) -> None:
        stood, seen.stood = seen.stood, {}
        for holder, name, value in _held(module):
            key = (id(holder), name)
            stands = seen.stood[key] = (value, value._version) if isinstance(value, Tensor) else value
            if key in stood and not _same(stood[key], stands) and len(seen.changed) < MOST:
                seen.changed[key] = holder


def _held(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """What torch's own modules carry, as the statistics of a batch norm, does not come into a training step."""
    for one in own_modules(module):
        for holder, held in ((one._buffers, one._buffers), (vars(one), attributes_of(one))):
            yield from ((holder, name, value) for name, value in held.items() if is_kept(value))


def is_kept(value: Any, most: int = SMALL) -> bool:
    """A number, or a tensor of at most so many elements that is no weight."""
    if type(value) is Tensor:
        return value.numel() <= most and not value.requires_grad and not value.is_inference()
    return type(value) in (bool, int, float)


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return a[0] is b[0] and a[1] == b[1]
    return type(a) is type(b) and a == b

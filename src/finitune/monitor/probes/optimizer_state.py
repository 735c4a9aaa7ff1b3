"""What an optimizer keeps beside its weights, copied and put back in place: in its state and in attributes of its own,
also within lists, dictionaries and objects that only hold such.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.leaves import leaves_of

_OF_TORCH = ("state", "param_groups", "defaults", "_opt_called", "_step_count")
"""Attributes of `torch.optim.Optimizer`, and those by which its schedules know that the step was called."""
_CONTAINERS = (list, deque, dict, set)
_WITHOUT_STATE = (FunctionType, BuiltinFunctionType, type, torch.dtype, torch.device, torch.Generator)
"""What an optimizer may hold besides, whose changes need not be taken back."""
MOST_NESTED = 4
_SHOWS = ("abc", "typing", "enum", "dataclasses")
_HIDES = ("torch", "numpy", "builtins")
"""Packages whose classes may hold what no attribute shows; of Python's own all but those above do."""


class StateKept:
    """Tensors are copied, and given back into the same tensors; containers hold the same objects again. So is what the
    optimizers keep that it wraps.

    LBFGS adds to its history and never writes to what is in it: of that the lists alone are kept.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._inner = [StateKept(inner) for inner in _wrapped_by(optimizer)]
        self._attributes = attributes_of(optimizer)
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._records: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._history = isinstance(optimizer, torch.optim.LBFGS)
        if isinstance(optimizer, torch.optim.Optimizer):
            self._keep(optimizer.state, MOST_NESTED)
        for value in self._attributes.values():
            self._keep(value, MOST_NESTED)

    def _keep(self, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            for stored in _stored(value):
                self._tensors.setdefault(id(stored), (stored, stored.detach().clone()))
        elif isinstance(value, _CONTAINERS) and depth and id(value) not in self._held:
            self._held[id(value)] = value, (list(value) if isinstance(value, deque) else value.copy())
            if not (self._history and isinstance(value, list)):
                for inner in value.values() if isinstance(value, dict) else value:
                    self._keep(inner, depth - 1)
        elif depth and id(value) not in self._records and (held := _held_by(value)) is not None:
            self._records[id(value)] = value, held
            for inner in held.values():
                self._keep(inner, depth - 1)

    def restore(self) -> None:
        for inner in self._inner:
            inner.restore()
        for name, value in self._attributes.items():
            setattr(self._optimizer, name, value)
        for there, kept in self._held.values():
            there.clear()
            (there.update if isinstance(there, dict | set) else there.extend)(kept)
        for there, kept in self._records.values():
            for name, value in kept.items():
                object.__setattr__(there, name, value)
        with torch.no_grad():
            for there, kept in self._tensors.values():
                there.detach().copy_(kept)


def _wrapped_by(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Optimizers that its attributes hold; one of the same state that stands for it is none."""
    own = getattr(optimizer, "state", None)
    held = leaves_of([value for name, value in own_attributes(optimizer).items() if name not in _OF_TORCH])
    found = {id(one): one for one in held if isinstance(one, torch.optim.Optimizer)}
    return [inner for inner in found.values() if inner is not optimizer and inner.state is not own]


def _stored(tensor: Tensor) -> list[Tensor]:
    """The tensors that one of another class is made of, as codes and scales of a moment in 8 bits, which may have no
    copy of its own; any other as it is.
    """
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    wrapper: Any = tensor
    names, _ = wrapper.__tensor_flatten__()
    return [stored for name in names for stored in _stored(getattr(tensor, name))]


def are_small(tensors: Sequence[Tensor], most_bytes: int) -> bool:
    """They are dense, and together no larger than that, so that to copy them costs little."""
    return all(t.layout is torch.strided for t in tensors) and sum(t.nbytes for t in tensors) <= most_bytes


def attributes_of(optimizer: Any) -> dict[str, Any]:
    """Tensors, numbers and containers of them that it keeps beside its state, as an estimate of the learning rate."""
    of_torch = _OF_TORCH if isinstance(optimizer, torch.optim.Optimizer) else ()
    kept = ((name, value) for name, value in own_attributes(optimizer).items() if name not in of_torch)
    own = {name: value for name, value in kept if not name.endswith("_hooks")}
    return {name: value for name, value in own.items() if all(map(is_plain, _leaves(value)))}


def leaves_kept(optimizer: Any) -> list[Any]:
    """What its state and attributes hold, at whatever depth."""
    state = optimizer.state.values() if isinstance(optimizer, torch.optim.Optimizer) else ()
    within = [leaf for inner in _wrapped_by(optimizer) for leaf in leaves_kept(inner)]
    return [*_leaves([*state, *attributes_of(optimizer).values()]), *within]


def can_be_put_back(thing: Any) -> bool:
    """Whether all that an object of any class holds is kept here, or has no state."""
    held = _held_by(thing)
    return held is not None and all(is_plain(leaf) or isinstance(leaf, _WITHOUT_STATE) for leaf in _leaves(held))


def own_attributes(thing: Any) -> dict[str, Any]:
    """Those in its dictionary and in its slots."""
    own = getattr(thing, "__dict__", None)
    slots = (name for base in type(thing).__mro__ for name in _names(vars(base).get("__slots__", ())))
    there = {name: getattr(thing, name) for name in slots if not name.startswith("__") and hasattr(thing, name)}
    return {**(own if isinstance(own, dict) else {}), **there}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _held_by(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of the program's that has no way of its own to set them; None for any other."""
    kind = type(value)
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    bases = [base.__module__.partition(".")[0] for base in kind.__mro__[:-1] if base is not SimpleNamespace]
    hides = any(name in _HIDES or (name in sys.stdlib_module_names and name not in _SHOWS) for name in bases)
    holds = kind is not object and (kind.__setattr__ is object.__setattr__ or frozen)
    return own_attributes(value) if holds and not hides else None


def _leaves(value: Any, depth: int = MOST_NESTED) -> list[Any]:
    """Of containers, and of objects that only hold something."""
    found: list[Any] = []
    for leaf in leaves_of(value):
        held = None if is_plain(leaf) or isinstance(leaf, _WITHOUT_STATE) or not depth else _held_by(leaf)
        found += [leaf] if held is None else _leaves(held, depth - 1)
    return found


def is_plain(leaf: Any) -> bool:
    """A tensor or a number, which can be put back."""
    return isinstance(leaf, Tensor | int | float | bool | str | None)

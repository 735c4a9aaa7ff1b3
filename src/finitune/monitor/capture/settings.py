"""The numbers, words and functions that a forward reads and that the program may set to others between steps, as a
curriculum does.

Attributes of modules, those of a configuration that is an attribute, entries of a dictionary that is one, and global
variables.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, NoneType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

from finitune.monitor.probes.module_state import attributes_of, own_modules

Setting = tuple[dict[str, Any], str, Any]
"""What holds it, its name there, and what it is: a tensor of one element is copied."""
KINDS = (bool, int, float, str, NoneType, FunctionType, MethodType, partial)
MOST = 1024
"""Of which the values are kept."""


def now_of(modules: Iterable[nn.Module]) -> list[Setting]:
    """As they are now, each once."""
    found: dict[tuple[int, str], Setting] = {}
    for module in modules:
        for one in own_modules(module):
            for holder, names in _holders(one):
                for name in names:
                    if _is_setting(value := holder.get(name, ...)) and len(found) < MOST:
                        found.setdefault((id(holder), name), (holder, name, _copy(value)))
    return list(found.values())


@contextmanager
def as_set(settings: Iterable[Setting]) -> Iterator[None]:
    """With these; afterwards those that are there now."""
    settings = [one for one in settings if one[1] in one[0]]
    now = [(holder, name, holder[name]) for holder, name, _ in settings]
    try:
        for holder, name, value in settings:
            holder[name] = _copy(value)
        yield
    finally:
        for holder, name, value in now:
            holder[name] = value


def _holders(module: nn.Module) -> Iterator[tuple[dict[str, Any], Iterable[str]]]:
    held = attributes_of(module)
    yield vars(module), held
    yield module._buffers, module._buffers
    for value in held.values():
        if type(value) is dict:
            yield value, [name for name in value if isinstance(name, str)]
        elif _is_configuration(value):
            yield vars(value), vars(value)
    forward = inspect.unwrap(type(module).forward)
    if inspect.isfunction(forward):
        yield forward.__globals__, forward.__code__.co_names


def _is_configuration(value: Any) -> bool:
    named = type(value).__name__.endswith("Config") or isinstance(value, SimpleNamespace)
    return (named or dataclasses.is_dataclass(value)) and isinstance(getattr(value, "__dict__", None), dict)


def _is_setting(value: Any) -> bool:
    if type(value) is Tensor:
        return value.numel() == 1 and not value.requires_grad and not value.is_inference()
    return type(value) in KINDS


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value

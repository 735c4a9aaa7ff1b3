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

from torch import nn

from finitune.monitor.capture.carried_state import Carried, copied, is_kept
from finitune.monitor.probes.module_state import attributes_of, own_modules

OTHER_KINDS = (str, NoneType, FunctionType, MethodType, partial)
"""What is kept beside numbers, and tensors of one."""
MOST = 1024
"""Of which the values are kept."""


def settings_of(modules: Iterable[nn.Module]) -> list[Carried]:
    """As they are now, each once."""
    found: dict[tuple[int, str], Carried] = {}
    for module in modules:
        for one in own_modules(module):
            for holder, names in _holders(one):
                for name in names:
                    if _is_setting(value := holder.get(name, ...)) and len(found) < MOST:
                        found.setdefault((id(holder), name), Carried(holder=holder, name=name, value=copied(value)))
    return list(found.values())


@contextmanager
def as_set(settings: Iterable[Carried]) -> Iterator[None]:
    """With these; afterwards those that are there now."""
    there = [one for one in settings if one.name in one.holder]
    now = [one.holder[one.name] for one in there]
    try:
        for one in there:
            one.put_back()
        yield
    finally:
        for one, value in zip(there, now, strict=True):
            one.holder[one.name] = value


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
    return type(value) in OTHER_KINDS or is_kept(value, 1)

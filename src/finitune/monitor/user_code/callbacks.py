"""Methods of the program's own objects that a trainer calls between two steps: `on_step_end`, `on_train_batch_end`.

When the next step is judged they have returned, so that no frame shows them. They are read off their source, and what
they were given off the objects in whose methods the program runs.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from finitune.monitor.probes.gc_objects import living
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import is_ours, is_users, running_frames, user_modules
from finitune.monitor.user_code.source_tree import scope_of
from finitune.monitor.user_code.variables import function_behind

_BEFORE = ("begin", "start", "before")
_DEFINED = re.compile(r"\s+(async\s+)?def\s+on_|\s+on_\w+\s*=")
"""A line of a class that gives it such a method."""
_ALSO = {"pl_module": "lightning_module"}
"""Parameters that are attributes of another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """With the attributes of a frame that was about to run its first statement."""

    f_code: CodeType
    f_globals: Mapping[str, Any]
    f_locals: Mapping[str, Any]
    scope: ast.FunctionDef

    @property
    def begins(self) -> bool:
        """It is called before a step, not after it."""
        return any(word in self.scope.name for word in _BEFORE)


def callbacks(*, given: bool) -> Iterator[Callback]:
    """Those of all objects that live; with what they were `given`, which is looked for in the variables of frames."""
    if not any(map(_defines_any, _files())):
        return
    things = living()
    methods = _methods_of(set(map(type, things)))
    if not methods:
        return
    running = list(_running_objects()) if given else []
    for thing in things:
        for function in methods.get(type(thing), ()):
            scope = scope_of(function.__code__)
            if isinstance(scope, ast.FunctionDef):
                own = next(iter(inspect.signature(function).parameters), "self")
                there = {**_given(function, running), own: thing}
                yield Callback(f_code=function.__code__, f_globals=function.__globals__, f_locals=there, scope=scope)


def _files() -> set[str]:
    """The user's files of which anything is imported or has run: with all that lives there is much more to look at."""
    others = {*linecache.cache, *(frame.f_code.co_filename for frame in running_frames())}
    return {space["__file__"] for space in user_modules()} | {file for file in others if is_users(file)}


def _defines_any(file: str) -> bool:
    return any(_DEFINED.match(line) for line in linecache.getlines(file))


def _methods_of(kinds: set[type]) -> dict[type, list[FunctionType]]:
    """Of each class that has any. Of a thousand classes in a process few bases have such names; each is read once."""
    bases = {base for kind in kinds for base in kind.__mro__}
    named = {base: names for base in bases if (names := {name for name in vars(base) if name.startswith("on_")})}
    found = {kind: list(_methods(kind, named)) for kind in kinds if not named.keys().isdisjoint(kind.__mro__)}
    return {kind: methods for kind, methods in found.items() if methods}


def _methods(kind: type, named: Mapping[type, set[str]]) -> Iterator[FunctionType]:
    for name in sorted({name for base in kind.__mro__ for name in named.get(base, ())}):
        function, _ = function_behind(inspect.getattr_static(kind, name))
        if function is not None and is_users(function.__code__.co_filename):
            yield function


def _given(function: FunctionType, running: list[Any]) -> dict[str, Any]:
    """What its parameters stand for: attributes of the trainer, the object that has most of them."""
    names = list(inspect.signature(function).parameters)[1:]
    found = [_attributes(one, names) for one in running]
    return max(found, key=len, default={})


def _attributes(one: Any, names: list[str]) -> dict[str, Any]:
    held = {**getattr(one, "__dict__", {}), **(one._modules if isinstance(one, nn.Module) else {})}
    held |= {name: getattr(one, other) for name, other in _ALSO.items() if hasattr(type(one), other)}
    there = {name: held[name] for name in names if held.get(name) is not None}
    return {name: unwrapped(value) if isinstance(value, nn.Module) else value for name, value in there.items()}


def _running_objects() -> Iterator[Any]:
    """In whose methods the program runs, innermost first."""
    for frame in running_frames():
        own = None if is_ours(frame.f_code.co_filename) else locals_of(frame).get("self")
        if own is not None:
            yield own

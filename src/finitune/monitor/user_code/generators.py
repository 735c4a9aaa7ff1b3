"""Generators of the user's that wait at a `yield`: their frames hold what they yield, and what that was made of."""

from __future__ import annotations

import ast
import gc
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, GeneratorType
from typing import Any

from finitune.monitor.user_code.source_line import is_users
from finitune.monitor.user_code.source_tree import Statement, holds_line, nodes_in, scope_of
from finitune.monitor.user_code.variables import function_behind, value_of

_HANDS_ON = ("next", "iter", "enumerate", "zip", "tqdm", "islice", "list", "tuple")
YIELDED = "what is yielded"
"""Its name among the variables of the generator."""


def waiting(expression: ast.AST, values: Mapping[str, Any]) -> FrameType | None:
    """The frame of the one generator that a loop over the expression, or a `next` of it, takes its values from; None
    where there is none, or several could be meant.
    """
    nodes = [node for node in ast.walk(expression) if isinstance(node, ast.Name | ast.Attribute)]
    named = [value_of(node, values) for node in nodes]
    found = {id(each): each for each in named if _is_waiting(each)}
    codes = {code for each in named if (code := _code_of(each)) is not None}
    if codes:
        alive = gc.get_objects()
        found |= {id(each): each for each in alive if _is_waiting(each) and each.gi_code in codes}
    return next(iter(found.values())).gi_frame if len(found) == 1 else None


def only_takes(expression: ast.AST, values: Mapping[str, Any]) -> bool:
    """Nothing is computed in it of what a generator yields: it calls generator functions, and what hands on."""
    calls = [node for node in ast.walk(expression) if isinstance(node, ast.Call)]
    return all(
        (isinstance(call.func, ast.Name) and call.func.id in _HANDS_ON)
        or _code_of(value_of(call.func, values)) is not None
        for call in calls
    )


def _is_waiting(value: Any) -> bool:
    if type(value) is not GeneratorType or not is_users(value.gi_code.co_filename):
        return False
    return inspect.getgeneratorstate(value) == inspect.GEN_SUSPENDED


def _code_of(value: Any) -> CodeType | None:
    """Of a generator function of the user's; of an object, or a class, the one that iterates over it."""
    function, _ = function_behind(value)
    if function is None or not inspect.isgeneratorfunction(function):
        kind = value if isinstance(value, type) else type(value)
        function, _ = function_behind(inspect.getattr_static(kind, "__iter__", None))
    is_one = function is not None and inspect.isgeneratorfunction(function) and is_users(function.__code__.co_filename)
    return function.__code__ if is_one and function is not None else None


def yields(frame: FrameType) -> Statement | None:
    """The `yield` that the frame waits at, as a statement that writes `YIELDED`."""
    scope = scope_of(frame.f_code)
    found = list(_yields_at(scope, frame.f_lineno)) if scope is not None else []
    value = found[0].value if len(found) == 1 else None
    return None if value is None else Statement.of(value, YIELDED)


def _yields_at(scope: ast.AST, line: int) -> Iterator[ast.Yield]:
    for node in nodes_in(scope):
        if isinstance(node, ast.Yield) and holds_line(node, line):
            yield node

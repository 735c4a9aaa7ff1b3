"""What a loop computes of the outputs of a model, also where these carry no graph: it is no data."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import nn

from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.source_tree import Statement, holds_line, loops_at, scope_of
from finitune.monitor.user_code.variables import models_called, value_of

_OF_SHAPE = ("shape", "dtype", "device", "ndim")


def is_of_model(
    frame: FrameType | EndedFrame, statements: Sequence[Statement], at: int, values: Mapping[str, Any]
) -> bool:
    """Whether the statement computes something of what a model put out, or a function did that was handed a model.
    What was computed once, before the loop that runs, is data.
    """
    scope = scope_of(frame.f_code)
    loops = loops_at(scope, frame.f_lineno) if scope is not None else []
    behind = _behind(statements, at)
    now = (one for one in behind if one is statements[at] or not loops or holds_line(loops[-1], one.line))
    return any(_calls_model(one.value, values) for one in now)


def _behind(statements: Sequence[Statement], at: int) -> Iterator[Statement]:
    """The statement, those that made what it reads, and so on."""
    waiting, known = [at], {at}
    while waiting:
        number = waiting.pop()
        yield statements[number]
        for name in _taken(statements[number].value):
            made = next((n for n in reversed(range(number)) if name in statements[n].writes), None)
            if made is not None and made not in known:
                known.add(made)
                waiting.append(made)


def _taken(node: ast.AST) -> Iterator[str]:
    """The variables whose values go into it, not their shape or dtype alone."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute) and node.attr in _OF_SHAPE:
        return
    elif isinstance(node, ast.Call) and _is_of_shape(node.func):
        parts = [*node.args[1:], *(each.value for each in node.keywords)] if _name(node.func).endswith("_like") else []
        for part in parts:
            yield from _taken(part)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _taken(part)


def _is_of_shape(function: ast.expr) -> bool:
    name = _name(function)
    return name in ("len", "size", "numel", "dim") or name.endswith("_like") or name.startswith("new_")


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _calls_model(value: ast.expr, values: Mapping[str, Any]) -> bool:
    if next(models_called(ast.walk(value), values), None) is not None:
        return True
    given = (each for call in ast.walk(value) if isinstance(call, ast.Call) for each in call.args)
    models = (model for node in given if isinstance(model := value_of(node, values), nn.Module))
    return any(next(model.parameters(), None) is not None for model in models)

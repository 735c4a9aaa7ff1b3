"""The calls of functions that torch.func and torch.compile have made of the user's, in the frames that run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.probes.transform_calls import given
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import nodes_in, scope_of
from finitune.monitor.user_code.transforms import is_compiled, is_transform, is_transformed
from finitune.monitor.user_code.variables import value_of


def calls_of_transforms(nodes: Iterable[ast.AST], values: Mapping[str, Any]) -> Iterator[ast.Call]:
    """Calls of functions that torch.func or torch.compile has returned, or returns there, and of functional_call."""
    for node in nodes:
        if isinstance(node, ast.Call):
            made = isinstance(node.func, ast.Call) and is_transform(value_of(node.func.func, values))
            called = value_of(node.func, values)
            if made or is_transformed(called) or is_compiled(called) or called is torch.func.functional_call:
                yield node


def made_in_transform() -> Origin | None:
    """Of a step that is judged within a function that torch.func has made: its call, computed once more, with what it
    was given where that is known: the frame may hold what it had in the pass before.
    """
    frame = next(user_frames(), None)
    scope = None if frame is None else scope_of(frame.f_code)
    if frame is None or scope is None:
        return None
    values = variables_of(frame)
    calls = calls_of_transforms(nodes_in(scope), values)
    call = next((one for one in calls if one.lineno == frame.f_lineno), None)
    watch = OperatorWatch.of_arithmetic()
    evaluation = Evaluation(lambda: watch.found(bad_loss=True) is not None)
    evaluation.placed_by(watch)  # of a derivative: the line of what it is the derivative of
    if call is None:
        return None
    with suppress(*NOT_COMPUTED), without_warnings(), torch.enable_grad(), watch:
        if (known := given()) is None:
            evaluation.value(call, values)
        else:
            args, named = known
            is_call = isinstance(call.func, ast.Call)  # where it is made
            function = evaluation.value(call.func, values) if is_call else value_of(call.func, values)
            evaluation.result(function, *args, **named)
    made = watch.found(bad_loss=True)
    return None if made is None else replace(made, line=made.line or evaluation.line)

"""The operator that made bad what an object keeps, in a method of its that a loop has called for just that.

A running mean is brought up to date by one statement, `scale.observe(y)`, and taken by another, `loss(out, scale(y))`:
in the second everything that is computed is bad already, and the first writes no variable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.statements.plain_statements import StateSpoilt, is_bad
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.source_tree import Statement, names_in, nodes_in, scope_of
from finitune.monitor.user_code.variables import value_of


def made_by_acting_call(
    frame: FrameType | EndedFrame, taken: Statement, values: Mapping[str, Any], bad_in: Callable[[Any], Tensor | None]
) -> Origin | None:
    """Of an object that `taken` reads and that keeps something bad: the operator that gave it that, in a method which
    the frame has called before in the same pass; None where its arguments, as they are now, do not.
    """
    for call in _calls_before(frame, taken):
        owner = value_of(call.func.value, values) if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ModuleType):  # which functions do not act on
            continue
        kept = getattr(owner, "__dict__", {}).values()
        if any(bad_in(one) is not None or is_bad(one) for one in kept) and (made := _made_in(call, values)) is not None:
            return made
    return None


def _calls_before(frame: FrameType | EndedFrame, taken: Statement) -> Iterator[ast.Call]:
    """The newest first."""
    scope = scope_of(frame.f_code)
    calls = [node for node in nodes_in(scope) if isinstance(node, ast.Call)] if scope is not None else []
    within = {id(node) for node in ast.walk(taken.value)}
    for call in sorted(calls, key=lambda each: each.lineno, reverse=True):
        of_it = isinstance(call.func, ast.Attribute) and names_in([call.func.value]) & taken.reads
        if of_it and call.lineno <= frame.f_lineno and id(call) not in within:
            yield call


def _made_in(call: ast.Call, values: Mapping[str, Any]) -> Origin | None:
    watch = OperatorWatch.of_arithmetic()
    found = lambda: evaluation.bad_number or watch.found(bad_loss=True)  # noqa: E731
    evaluation = Evaluation(lambda: found() is not None)
    evaluation.placed_by(watch)
    try:
        with without_warnings(), torch.no_grad(), watch, suppress(*NOT_COMPUTED):
            evaluation.value(call, values)
    except StateSpoilt:  # what was made there is what the object keeps
        made = found()
        return made and replace(made, line=made.line or evaluation.line)
    return None

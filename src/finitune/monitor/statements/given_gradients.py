"""A backward that the loop begins with a gradient of its own making, as one that balances several losses does."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.statements.bad_statement import made_in
from finitune.monitor.user_code.ended_frames import EndedFrame, GivenGradient, ended
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import Statement, holds_line, nodes_in, scope_of

GIVEN = "the gradient that is given"
"""Its name among the variables of the function that gives it."""


def bad_gradient(those: Iterable[GivenGradient]) -> Origin | None:
    """The statement that has made one of them bad; None where all are finite, or no frame tells it."""
    for one in those:
        if not is_finite(one.tensor):
            frames = [*ended(one.callers), *user_frames()]
            found = (_given_in(frame, one.tensor) for frame in frames)
            return next((origin for origin in found if origin is not None), None)
    return None


def _given_in(frame: FrameType | EndedFrame, gradient: Tensor) -> Origin | None:
    scope = scope_of(frame.f_code)
    calls = [one for node in nodes_in(scope) if (one := _argument_of(node)) is not None] if scope is not None else []
    calls = [one for one in calls if holds_line(one, frame.f_lineno)] or calls
    if len(calls) != 1:
        return None
    origin = made_in(frame, Statement.of(calls[0], GIVEN), gradient)
    return None if origin is None else replace(origin, phase="backward")


def _argument_of(node: ast.AST) -> ast.expr | None:
    """What a `backward` is given beside what it is of."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "backward":
        return None
    named = next((each.value for each in node.keywords if each.arg in ("gradient", "grad_tensors")), None)
    # `torch.autograd.backward(tensors, gradients)`, `tensor.backward(gradient)`
    of_torch = isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "autograd"
    return named or (node.args[of_torch] if len(node.args) > of_torch else None)

"""The sums in the code that runs of which one operand has no graph: what a loop adds to what its model puts out.

Looked for in the running frames of the user's program, and in functions of the user that these call with names they
hold. Nothing of the user's is called.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finitune.monitor.probes.finite import is_inexact
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.user_code.arithmetic import evaluate
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import is_users, user_frames
from finitune.monitor.user_code.source_tree import nodes_in, scope_of
from finitune.monitor.user_code.variables import function_behind, names_within, value_of

DEEPEST, MOST_CALLS = 3, 64
"""Functions within one another, and calls that are followed from one frame."""
Spelled = tuple[ast.expr, ast.expr, int]
"""Two operands, and the sign of the second."""
Sum = tuple[Tensor | None, Tensor]
"""Something with a graph, None where it is not known, and what is added to it; both with their signs."""


def sums(*, cheap: bool = False) -> Iterator[Sum]:
    """With `cheap` nothing is computed but what a name, an attribute or an index stands for."""
    for frame in user_frames():
        names = variables_of(frame)
        yield from _sums(frame.f_code, names, 0, iter(range(MOST_CALLS)), cheap=cheap)


def gives(known: Tensor, constant: Tensor, result: Tensor) -> bool:
    """Whether their sum is the result, bit for bit."""
    try:
        return same(known + constant, result)
    except RuntimeError:  # other sizes, another device
        return False


def comes_out_as(value: Any, seen: Any) -> bool:
    """Whether a tensor that was computed again is the one of the step, bit for bit; of no container that is known."""
    return isinstance(value, Tensor) and isinstance(seen, Tensor) and same(value.detach(), seen.detach())


def is_bad_alike(value: Any, wanted: Any) -> bool:
    """NaN in the same elements of several, and finite in others."""
    if not isinstance(value, Tensor) or not isinstance(wanted, Tensor):
        return False
    if value.shape != wanted.shape or not is_inexact(value):
        return False
    bad = value.isnan()
    return bool(bad.any()) and not bool(bad.all()) and torch.equal(bad, wanted.isnan())


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, NaN included."""
    alike = one.shape == other.shape and one.device == other.device
    return alike and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _sums(
    code: CodeType, names: Mapping[str, Any], depth: int, left_over: Iterator[int], *, cheap: bool
) -> Iterator[Sum]:
    written, calls = _nodes(code)
    differences = [pair for call in calls if (pair := _difference(call, names)) is not None]
    for one, other, sign in [*written, *differences]:
        left, right = (_computed(each, names, cheap=cheap) for each in (one, other))
        if left is not None and not left.requires_grad and (right is None or right.requires_grad):
            yield None if right is None else sign * right.detach(), left
        elif right is not None and not right.requires_grad:
            yield None if left is None else left.detach(), sign * right
    for call in calls if depth < DEEPEST else ():
        function, own = function_behind(value_of(call.func, names))
        if function is None or not is_users(function.__code__.co_filename):
            continue
        given = [_computed(each, names, cheap=cheap) for each in call.args]
        named = {each.arg: _computed(each.value, names, cheap=cheap) for each in call.keywords if each.arg}
        if all(each is None for each in (*given, *named.values())) or next(left_over, None) is None:
            continue
        try:
            bound = inspect.signature(function).bind(*([] if own is None else [own]), *given, **named)
        except (TypeError, ValueError):  # with a star, say
            continue
        within = {**names_within(function), **bound.arguments}
        yield from _sums(function.__code__, within, depth + 1, left_over, cheap=cheap)


@cache
def _nodes(code: CodeType) -> tuple[list[Spelled], list[ast.Call]]:
    scope = scope_of(code)
    nodes = [] if scope is None else list(nodes_in(scope))
    written = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add | ast.Sub)]
    found = [(n.left, n.right, 1 if isinstance(n.op, ast.Add) else -1) for n in written]
    return found, [n for n in nodes if isinstance(n, ast.Call)]


def _difference(call: ast.Call, names: Mapping[str, Any]) -> Spelled | None:
    """What a call of torch's own subtracts first, of which no node keeps the operands."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "target")]
    called = value_of(call.func, names) if len(given) > 1 else None
    return (given[0], given[1], -1) if called is F.l1_loss or isinstance(called, nn.L1Loss) else None


def _computed(node: ast.expr, names: Mapping[str, Any], *, cheap: bool) -> Tensor | None:
    """The value of an expression; None where it calls a model, say."""
    if cheap and any(isinstance(each, ast.Call | ast.BinOp) for each in ast.walk(node)):
        return None
    try:
        with without_warnings():
            value = evaluate(node, names)
        return None if isinstance(value, list | tuple) else torch.as_tensor(value)
    except Exception:  # not plain, no number, or not to be computed now
        return None

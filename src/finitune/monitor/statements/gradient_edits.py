"""What a loop writes into gradients between its backward and its step, computed again on those that the backward left:
clipping, scaling or noise by hand, the projections of several tasks; and where there is no backward, a derivative in
closed form.

The statements are read off the frames that still run, and computed on copies. Nothing of the user's is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.capture.step import Capture
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.optimizers import parameters_of
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.replay.limits import Communicates
from finitune.monitor.statements.bad_statement import made_variable
from finitune.monitor.statements.edits import Edits
from finitune.monitor.statements.operator_lines import reached
from finitune.monitor.user_code.bad_tensors import bad_tensor_in
from finitune.monitor.user_code.callbacks import Callback, callbacks
from finitune.monitor.user_code.frame_variables import locals_of, variables_of
from finitune.monitor.user_code.source_line import described, user_frames
from finitune.monitor.user_code.source_tree import before_line, is_in_place, loops_at, scope_of

Gradients = Sequence[tuple[Tensor, Tensor | None]]
"""Parameters with copies of the gradients that the last backward left them; None where no backward has."""
_BACKWARDS, _ASKS = ("backward", "manual_backward"), ("grad",)


def later_edit(left: Gradients, optimizer: Any, capture: Capture) -> Origin | None:
    """What has made gradients of the optimizer bad that the backward had left finite, which a replay does not show."""
    known = {id(p) for p, _ in left}
    without = [(p, None) for p in parameters_of(optimizer) if id(p) not in known]
    gradients = [*left, *without] if left or capture.only_asked else []
    try:
        finite = are_finite([g for _, g in gradients if g is not None])
        return bad_edit(gradients, asked=not left and bool(capture.micro_steps)) if finite else None
    except Exception:  # a statement that cannot be read
        return None


def bad_edit(left: Gradients, *, asked: bool = False) -> Origin | None:
    """The operator, or the statement alone, with which the program has made gradients bad that its backward has left
    finite; None where its frames do not show it. `asked`: the loop has asked for gradients, and puts into parameters
    what it makes of them; these may have been bad themselves, so that only the operator is named.
    """
    by_backward = any(gradient is not None for _, gradient in left)
    edits = _edits(_BACKWARDS) if by_backward else _edits(_ASKS) if asked else _of_iteration()
    edits = edits or (_of_callbacks() if by_backward else [])
    own = [(frame, statements) for frame, statements in edits if isinstance(frame, FrameType)] if asked else []
    bad = [(frame, *one) for frame, statements in own for one in _bad_variables(frame, statements)]
    if not edits or bad:
        made = (made_variable(*one) for one in bad)
        first = next((one for one in made if one is not None and one.is_operator), None)
        return first and replace(first, module=None, phase="backward", rows=None)
    watch = OperatorWatch.of_arithmetic()
    evaluation = Edits(watch, [p for p, _ in left])
    with without_warnings(), torch.enable_grad(), _given(left):
        for frame, statements in edits:
            values = variables_of(frame)
            for statement in statements:
                shared = False
                try:
                    with watch:
                        evaluation.run([statement], values, frame.f_code)
                except Communicates:
                    shared = watch.found() is not None  # what this rank gives to the others is bad
                except Exception:  # one that cannot be computed
                    pass
                if shared or not are_finite([p.grad for p, _ in left if p.grad is not None]):
                    found = watch.found()
                    own = found and replace(found, module=None, phase="backward", line=evaluation.line)
                    return own or (None if asked else _statement(frame, statement, left, evaluation.line))
    # Where a single statement can have written to gradients, it did; a trainer itself may have, beside callbacks.
    running = [(frame, statements) for frame, statements in edits if not isinstance(frame, Callback)]
    wrote = [(frame, one) for frame, statements in running for one in statements if _may_write(one, frame)]
    return _statement(*wrote[0], left) if len(wrote) == 1 and not asked else None


def _bad_variables(frame: FrameType, statements: list[ast.stmt]) -> Iterator[tuple[str, Tensor]]:
    """Those that they read and do not write, such as a gradient that was asked for."""
    names = [node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)]
    values = locals_of(frame)
    for name in sorted({n.id for n in names} - {n.id for n in names if isinstance(n.ctx, ast.Store)}):
        if (bad := bad_tensor_in(values.get(name), minus=True)) is not None:
            yield name, bad


def _statement(frame: FrameType | Callback, statement: ast.stmt, left: Gradients, line: str | None = None) -> Origin:
    """What has made a variable bad that the statement reads; else nothing is known but the statement, or the `line`
    within it.
    """
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if isinstance(frame, FrameType):
        values = locals_of(frame)
        for name in sorted(read & values.keys()):
            bad = bad_tensor_in(values[name], minus=True)
            made = made_variable(frame, name, bad) if bad is not None else None
            if made is not None and made.is_operator:
                return replace(made, module=None, phase="backward")
    within = (one for one in ast.walk(statement) if isinstance(one, ast.stmt) and not hasattr(one, "body"))
    simple = next(filter(_writes, within), statement)
    line = line or described(frame.f_code.co_filename, simple.lineno, frame.f_code.co_name)
    return Origin(module=None, op="backward", phase="backward", dtype=dtype_name(left[0][0].dtype), line=line)


def _edits(begins: tuple[str, ...]) -> list[tuple[FrameType, list[ast.stmt]]]:
    """The statements that have run since the last call of one of these, outermost frame first; empty where no frame
    shows it.
    """
    edits: list[tuple[FrameType, list[ast.stmt]]] = []
    for frame in user_frames():
        scope = scope_of(frame.f_code)
        if scope is None:
            continue
        before = list(before_line(scope, frame.f_lineno))
        backwards = [n for n, one in enumerate(before) if _calls(one, frame, begins)]
        edits.insert(0, (frame, before[backwards[-1] + 1 :] if backwards else before))
        if backwards:
            return edits
    return []


def _of_iteration() -> list[tuple[FrameType, list[ast.stmt]]]:
    """The statements of this turn of the innermost loop that write gradients, and those that they depend on, outermost
    frame first; empty where no frame shows a loop.
    """
    edits: list[tuple[FrameType, list[ast.stmt]]] = []
    for frame in user_frames():
        scope = scope_of(frame.f_code)
        if scope is None:
            continue
        loops = loops_at(scope, frame.f_lineno)
        before = before_line(loops[-1] if loops else scope, frame.f_lineno)
        edits.insert(0, (frame, _writing(list(before), frame)))
        if loops:
            return edits
    return []


def _of_callbacks() -> list[tuple[Callback, list[ast.stmt]]]:
    """What methods of the program's own do that a trainer calls, as `on_pre_optimizer_step`: they have returned."""
    return [(one, one.scope.body) for one in callbacks(given=True) if _reads(one.scope) and _writes(one.scope)]


def _writing(statements: list[ast.stmt], frame: FrameType) -> list[ast.stmt]:
    """Those that may write to gradients, and those that assign what these read."""
    kept: list[ast.stmt] = []
    read: set[str] = set()
    for one in reversed(statements):
        names = [node for node in ast.walk(one) if isinstance(node, ast.Name)]
        assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        if _may_write(one, frame) or not read.isdisjoint(assigned):
            kept.insert(0, one)
            read |= {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return kept


def _calls(statement: ast.stmt, frame: FrameType, names: tuple[str, ...]) -> bool:
    nodes = (node for code in reached(frame, [statement]) for node in ast.walk(code.node))
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in names
        for node in nodes
    )


def _may_write(statement: ast.stmt, frame: FrameType) -> bool:
    """It writes to gradients, or calls a function of the user's that speaks of them and writes to tensors."""
    scopes = (code.node for code in reached(frame, [statement]))
    return any(_writes(scope) and (scope is statement or _reads(scope)) for scope in scopes)


def _reads(scope: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(scope))


def _writes(scope: ast.AST) -> bool:
    return any(
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_in_place(node.func.attr))
        for node in ast.walk(scope)
    )


@contextmanager
def _given(left: Gradients) -> Iterator[None]:
    """The parameters have copies of the gradients that the backward left; afterwards those that they have now."""
    now = [(p, p.grad) for p, _ in left]
    try:
        for p, gradient in left:
            p.grad = None if gradient is None else gradient.clone()
        yield
    finally:
        for p, gradient in now:
            p.grad = gradient

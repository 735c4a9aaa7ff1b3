"""What a loop writes into gradients between its backward and its step, computed again on those that the backward left:
clipping, scaling or noise by hand, the projections of several tasks; and where there is no backward, a derivative in
closed form.

The statements are read off the frames that still run, and computed on copies. Nothing of the user's is called.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.finding import Origin
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.replay.arithmetic import NotPlain, applied, assign
from finitune.monitor.replay.limits import Communicates, is_collective
from finitune.monitor.replay.looked_up import value_of
from finitune.monitor.replay.operator_watch import OperatorWatch
from finitune.monitor.replay.plain_functions import Evaluation
from finitune.monitor.replay.source_line import described, user_frames
from finitune.monitor.replay.source_tree import holds_line, is_in_place, loops_at, scope_of
from finitune.monitor.replay.spelled import reached
from finitune.monitor.replay.statements import bad_tensor_in

Gradients = Sequence[tuple[Tensor, Tensor | None]]
"""Parameters with copies of the gradients that the last backward left them; None where no backward has."""
_CLIPS = (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_)
_BACKWARDS, _ASKS = ("backward", "manual_backward"), ("grad",)
_BODIES = ("body", "orelse", "finalbody")


def bad_edit(left: Gradients, *, asked: bool = False) -> Origin | None:
    """The operator, or the statement alone, with which the program has made gradients bad that its backward has left
    finite; None where its frames do not show it. `asked`: the loop has asked for gradients, and puts into parameters
    what it makes of them; these may have been bad themselves, so that only the operator is named.
    """
    by_backward = any(gradient is not None for _, gradient in left)
    edits = _edits(_BACKWARDS) if by_backward else _edits(_ASKS) if asked else _of_iteration()
    if not edits or (asked and any(_reads_what_is_bad(frame, statements) for frame, statements in edits)):
        return None
    watch = OperatorWatch.of_arithmetic()
    evaluation = _Edits(watch, left)
    with warnings.catch_warnings(), torch.enable_grad(), _given(left):
        warnings.simplefilter("ignore")  # the program has had them
        for frame, statements in edits:
            values = {**frame.f_globals, **frame.f_locals}
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
    # Where a single statement can have written to gradients, it did.
    wrote = [(frame, one) for frame, statements in edits for one in statements if _may_write(one, frame)]
    return _statement(*wrote[0], left) if len(wrote) == 1 and not asked else None


def _reads_what_is_bad(frame: FrameType, statements: list[ast.stmt]) -> bool:
    """A variable that they do not write, such as a gradient that was asked for."""
    values = {**frame.f_globals, **frame.f_locals}
    names = [node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)]
    read = {name.id for name in names} - {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return any(bad_tensor_in(values.get(name), minus=True) is not None for name in read)


def _statement(frame: FrameType, statement: ast.stmt, left: Gradients, line: str | None = None) -> Origin:
    """Nothing is known but the statement; `line` is one within it."""
    line = line or described(frame.f_code.co_filename, statement.lineno, frame.f_code.co_name)
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
        before = list(_before(scope, frame.f_lineno))
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
        before = _before(loops[-1] if loops else scope, frame.f_lineno)
        edits.insert(0, (frame, _writing(list(before), frame)))
        if loops:
            return edits
    return []


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


def _before(scope: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements that lead to the one in that line, without those of other branches."""
    for name in _BODIES:
        block: list[ast.stmt] = getattr(scope, name, [])
        at = next((n for n, one in enumerate(block) if holds_line(one, line)), None)
        if at is not None:
            yield from block[:at]
            yield from _before(block[at], line)


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


class _Edits(Evaluation):
    """Writes to the copies of gradients, and to nothing else."""

    def __init__(self, watch: OperatorWatch, left: Gradients) -> None:
        super().__init__(lambda: self._wrote_bad or watch.found() is not None)
        self._parameters = [p for p, _ in left]
        self._wrote_bad = False

    def compute(self, statement: ast.stmt, values: dict[str, Any], code: CodeType) -> None:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name)) as call) if is_in_place(
                name
            ) and not isinstance(value_of(owner, values), ModuleType):
                self._written(owner, name, call, values)
            case ast.Expr(value=ast.Call(func=called)) if is_collective(value_of(called, values)):
                raise Communicates(ast.unparse(called))
            case ast.Expr(value=ast.Call() as call):
                self.value(call, values)
            case ast.Assign(targets=[ast.Attribute(value=owner, attr="grad")], value=value):
                self._assigned(owner, self.value(value, values), values)
            case ast.AugAssign(target=ast.Attribute(value=owner, attr="grad") as target, op=op, value=value):
                self._assigned(owner, applied(op, self.value(target, values), self.value(value, values)), values)
            case ast.AugAssign(target=target, op=op, value=value) if self._is_own(into := self._there(target, values)):
                self._look_at(into.copy_(applied(op, into, self.value(value, values))))
            case ast.Assign(targets=[ast.Subscript() as target], value=value) if self._is_own(
                into := self._there(target.value, values)
            ):
                into[self.value(target.slice, values)] = self.value(value, values)
                self._look_at(into)
            case _:
                super().compute(statement, values, code)

    def _there(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        return self.value(node, values) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else None

    def called(self, node: ast.expr, values: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        called = value_of(node, values)
        foreach = getattr(called, "__name__", "").startswith("_foreach_") and hasattr(torch, called.__name__)
        if called not in _CLIPS and not foreach:
            return super().called(node, values, args, named)
        written = [args[0]] if isinstance(args[0], Tensor) else list(args[0])
        if not all(self._is_own(each) or self._is_trained(each) for each in written):
            raise NotPlain(ast.unparse(node))
        return called(*args, **named)

    def _assigned(self, owner: ast.expr, value: Any, values: Mapping[str, Any]) -> None:
        parameter = self.value(owner, values)
        if not self._is_trained(parameter):
            raise NotPlain(ast.unparse(owner))
        parameter.grad = None if value is None else value.detach().clone()
        self._look_at(parameter.grad)

    def _written(self, owner: ast.expr, name: str, call: ast.Call, values: dict[str, Any]) -> None:
        """A method in place."""
        into = self.value(owner, values)
        args = [self.value(each, values) for each in call.args]
        named = {each.arg: self.value(each.value, values) for each in call.keywords if each.arg is not None}
        if self._is_own(into):
            self._look_at(getattr(into, name)(*args, **named))
        else:  # a sum that the loop keeps: another tensor takes its place
            assign(owner, getattr(into.clone(), name)(*args, **named), values)

    def _look_at(self, gradient: Tensor | None) -> None:
        with _disable_current_modes():
            self._wrote_bad |= gradient is not None and not are_finite([gradient])

    def _is_own(self, value: Any) -> bool:
        """A gradient, or a view of one."""
        held = (p.grad for p in self._parameters)
        return isinstance(value, Tensor) and any(g is not None and _same_storage(g, value) for g in held)

    def _is_trained(self, value: Any) -> bool:
        return any(p is value for p in self._parameters)


def _same_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata

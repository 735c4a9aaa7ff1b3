"""What a program writes into weights by statements of its own, computed again on the weights that it had before:
updates without an optimizer, and what is done to weights after their optimizer's step.

The statements are read off the frames that run when the next step is judged, and computed on copies. Nothing of the
user's is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import LIFTED, OperatorWatch
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.statements.bad_value_operators import Maker, makers_in, only_one
from finitune.monitor.statements.edits import Edits
from finitune.monitor.statements.operator_lines import reached
from finitune.monitor.statements.plain_statements import Returned
from finitune.monitor.user_code.bad_tensors import bad_tensor_in
from finitune.monitor.user_code.callbacks import Callback, callbacks
from finitune.monitor.user_code.frame_variables import locals_of, variables_of
from finitune.monitor.user_code.source_line import described, user_frames
from finitune.monitor.user_code.source_tree import (
    after_line,
    before_line,
    is_in_place,
    loops_at,
    names_in,
    scope_of,
    statements_in,
)

MOST_FRAMES = 8
_UNTRACKED = ("no_grad", "inference_mode")
_WRITES = ("vector_to_parameters", "load_state_dict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A weight, with copies of its value and of its gradient as the last finite step has left them."""

    weight: Tensor
    value: Tensor
    gradient: Tensor | None
    version: int

    @staticmethod
    @torch.no_grad()
    def of(weight: Tensor) -> Left:
        gradient = None if weight.grad is None else weight.grad.clone()
        return Left(weight=weight, value=weight.clone(), gradient=gradient, version=weight._version)

    @property
    def is_current(self) -> bool:
        """Nothing has written to the weight since."""
        return self.weight._version == self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """`in_next`: by the pass of the loop that runs now, before its own step."""

    origin: Origin
    in_next: bool


def may_write() -> bool:
    """Whether the frames that run show a statement, outside of the `step` of an optimizer, that may write to weights in
    each pass of a loop.
    """
    parts = [*_parts(after=True), *_parts(after=False), *_of_callbacks(given=False)]
    return any(_writes_weights(frame, one, variables=False) for frame, statements, _ in parts for one in statements)


def bad_write(left: Sequence[Left], now: Sequence[Tensor]) -> Written | None:
    """The operator with which the program's own statements have made weights bad; the statement alone where it cannot
    be computed again, and no other writes to weights. `now` are the weights that stand in the place of those before.
    None where the statements, taken again, leave finite weights.
    """
    stands_for = {
        id(weight): known.value.requires_grad_(weight.requires_grad)
        for weight, known in zip(now, left, strict=False)
        if weight is not known.weight
    }
    watch = OperatorWatch.of_arithmetic()
    evaluation = Edits(watch, [one.weight for one in left], of_weights=True)
    writers: list[Written] = []
    makers: list[Iterator[Maker | None]] = []
    computed = True
    with without_warnings(), torch.enable_grad(), _given(left):
        for frame, statements, in_next in [*_parts(after=True), *_of_callbacks(given=True), *_parts(after=False)]:
            values = _with(stands_for, variables_of(frame))
            values |= {} if in_next or isinstance(frame, Callback) else _counted(frame)
            there = (frame.f_code.co_filename, frame.f_code.co_name)
            for n, one in enumerate(statements):
                if _steps(one):
                    continue
                writes = _writes_weights(frame, one)
                if writes:
                    writers.append(Written(origin=_statement(left, _line(frame, one)), in_next=in_next))
                    makers += (makers_in(each, values, there) for each in _feeding(statements[:n], one))
                try:
                    with watch:
                        evaluation.run([one], values, frame.f_code)
                except Returned:
                    break
                except Exception:  # one that cannot be computed
                    computed &= not writes
                if evaluation.wrote_bad or _is_bad(values, one, stands_for):
                    made, line = watch.found(), evaluation.line or _line(frame, one)
                    if made is None or made.op == LIFTED:
                        return Written(origin=_statement(left, line), in_next=in_next)
                    return Written(origin=replace(made, module=None, phase="optimizer", line=line), in_next=in_next)
    made = only_one(chain.from_iterable(makers), of_nothing=_holds_nan(now))
    if made is not None:  # what the statements take may have moved on since
        origin = replace(writers[-1].origin, op=made[0], line=made[1])
        return Written(origin=origin, in_next=all(one.in_next for one in writers))
    return writers[0] if len(writers) == 1 and not computed else None


def _feeding(before: Sequence[ast.stmt], one: ast.stmt) -> list[ast.stmt]:
    """A statement, with those `before` it that write the variables that it reads."""
    found, read = [one], names_in([one])
    for each in reversed(before):
        if read & {name for within in statements_in(ast.Module([each], [])) for name in within.writes}:
            found.append(each)
            read |= names_in([each])
    return found


def _holds_nan(tensors: Iterable[Tensor]) -> bool:
    return any(bool(torch.isnan(one).any()) for one in tensors)


def _statement(left: Sequence[Left], line: str) -> Origin:
    return Origin(module=None, op="optimizer", phase="optimizer", dtype=dtype_name(left[0].value.dtype), line=line)


def _line(frame: FrameType | Callback, statement: ast.stmt) -> str:
    return described(frame.f_code.co_filename, statement.lineno, frame.f_code.co_name)


def _of_callbacks(*, given: bool) -> Iterator[tuple[Callback, list[ast.stmt], bool]]:
    """Of each that may write to weights, its statements, and whether they run before the step."""
    for one in callbacks(given=given):
        if any(_writes_weights(one, each, variables=False) for each in one.scope.body):
            yield one, one.scope.body, one.begins


def _parts(*, after: bool) -> Iterator[tuple[FrameType, list[ast.stmt], bool]]:
    """Of each frame that a loop runs, the statements that have run since the last step was judged in the same place:
    those below the present line in the pass of the loop before, innermost frame first; else those above it in this
    pass, outermost first.
    """
    scopes = [(frame, scope_of(frame.f_code)) for frame in islice(user_frames(), MOST_FRAMES)]
    known = [(frame, scope, loops_at(scope, frame.f_lineno)) for frame, scope in scopes if scope is not None]
    in_loop = [n for n, (_, _, loops) in enumerate(known) if loops]
    if not in_loop:
        return
    if after:
        for frame, scope, loops in known[: in_loop[-1] + 1]:
            yield frame, list(after_line(loops[0] if loops else scope, frame.f_lineno)), False
    else:
        for frame, scope, loops in reversed(known[: in_loop[0] + 1]):
            yield frame, list(before_line(loops[-1] if loops else scope, frame.f_lineno)), True


def _writes_weights(frame: FrameType | Callback, statement: ast.stmt, *, variables: bool = True) -> bool:
    """It writes to tensors as only what is not tracked by autograd may, or calls a function of the user's that does. A
    callback is given the model, and writes to it by whatever name.
    """
    if _steps(statement):
        return False
    codes = [code for code in reached(frame, [statement], variables=variables) if code.function != "step"]
    nodes = ((node, code.node) for code in codes for node in ast.walk(code.node))
    return any(_is_untracked_write(*one) or (isinstance(frame, Callback) and _is_write(one[0])) for one in nodes)


def _is_write(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr=name))]):
            return name in ("weight", "bias")
        case _:
            return _is_in_place(node)


def _is_in_place(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return is_in_place(name) and name != "requires_grad_"
        case _:
            return False


def _steps(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="step" | "backward" | "zero_grad"))):
            return True
        case _:
            return False


def _is_untracked_write(node: ast.AST, within: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            return _is_of_data(target) or (isinstance(node, ast.AugAssign) and _is_untracked(node, within))
        case ast.Call(func=ast.Attribute(value=owner)) if _is_in_place(node):
            return _is_of_data(owner) or _is_untracked(node, within)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _WRITES
        case _:
            return False


def _is_of_data(node: ast.AST) -> bool:
    return any(
        (isinstance(each, ast.Attribute) and each.attr == "data")
        or (isinstance(each, ast.Call) and getattr(each.func, "attr", None) == "detach")
        for each in ast.walk(node)
    )


def _is_untracked(node: ast.AST, within: ast.AST) -> bool:
    """It stands in a block, or in a function, that autograd does not track."""
    for around in ast.walk(within):
        marks: list[ast.expr] = []
        if isinstance(around, ast.With):
            marks = [item.context_expr for item in around.items]
        elif isinstance(around, ast.FunctionDef):
            marks = around.decorator_list
        untracked = any(name in ast.unparse(mark) for mark in marks for name in _UNTRACKED)
        if untracked and any(each is node for each in ast.walk(around)):
            return True
    return False


@contextmanager
def _given(left: Iterable[Left]) -> Iterator[None]:
    """Weights and gradients are copies of those that were left; afterwards those that they are now."""
    now = [(one.weight, one.weight.data, one.weight.grad) for one in left]
    try:
        for one in left:
            one.weight.grad = None
            one.weight.data = one.value.detach().clone()
            one.weight.grad = None if one.gradient is None else one.gradient.clone()
        yield
    finally:
        for weight, value, gradient in now:
            weight.grad = None
            weight.data = value
            weight.grad = gradient


def _counted(frame: FrameType) -> dict[str, int]:
    """What the loops around the line have counted in the pass before: variables of `range` and `enumerate`. Of a loop
    in its first pass that is the pass before of the one around it.
    """
    scope = scope_of(frame.f_code)
    for loop in reversed(loops_at(scope, frame.f_lineno) if scope is not None else []):
        match loop:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=args)):
                first, by = args[0] if len(args) > 1 else 0, args[2] if len(args) == 3 else 1
            case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))):
                first, by = 0, 1
            case _:
                continue
        value, start, step = (_number(each) for each in (locals_of(frame).get(name), first, by))
        if value is not None and step is not None and value != start:
            return {name: value - step}
    return {}


def _number(value: Any) -> int | None:
    value = value.value if isinstance(value, ast.Constant) else value
    return value if isinstance(value, int) else None


def _with(stands_for: dict[int, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """The variables, with the weights of before in the place of those that have taken theirs."""
    return {name: _replaced(value, stands_for) for name, value in values.items()} if stands_for else values


def _replaced(value: Any, stands_for: dict[int, Tensor]) -> Any:
    if id(value) in stands_for:
        return stands_for[id(value)]
    if type(value) is dict and any(id(each) in stands_for for each in value.values()):
        return {name: _replaced(each, stands_for) for name, each in value.items()}
    if type(value) in (list, tuple) and any(id(each) in stands_for for each in value):
        return type(value)(_replaced(each, stands_for) for each in value)
    return value


def _is_bad(values: dict[str, Any], statement: ast.stmt, stands_for: dict[int, Tensor]) -> bool:
    """Variables that held weights hold bad ones after the statement."""
    if not stands_for:
        return False
    stored = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    shapes = {tuple(one.shape) for one in stands_for.values()}
    bad = (bad_tensor_in(values.get(name), minus=True) for name in stored)
    return any(one is not None and tuple(one.shape) in shapes for one in bad)

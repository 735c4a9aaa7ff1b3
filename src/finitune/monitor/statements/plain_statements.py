"""Statements of the user's computed again one after the other, on names and values of our own.

What is more than plain arithmetic leaves the names that it writes without a value; what is computed from them has none
either. Nothing of the user's is written to: not variables, not what objects keep.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.user_code import numpy_arithmetic
from finitune.monitor.user_code.arithmetic import FILLS, MISSING, Asked, assign, items_of, or_missing
from finitune.monitor.user_code.generators import YIELDED
from finitune.monitor.user_code.source_line import described
from finitune.monitor.user_code.source_tree import is_state, joins, names_in, parts_without, stored_in, written_in_place
from finitune.monitor.user_code.torch_arithmetic import NotPlain
from finitune.monitor.user_code.variables import value_of

MOST_STATEMENTS = 2000
"""Computed for one expression, those of loops counted each time."""
_CHANGE_NO_VALUE = ("no_grad", "inference_mode", "enable_grad", "record_function", "nullcontext")
"""Contexts by name: what runs within them comes out the same."""
_SAY = ("print", "log", "log_dict", "debug", "info", "warning", "write")
"""Functions and methods that pass on what they are given."""


class Statements(Asked):
    """`found` tells whether what is looked for was made by now. `line` is the statement that made it, as `user_line`
    gives it, and `now` the one that is computed.
    """

    def __init__(self, found: Callable[[], bool]) -> None:
        self.line: str | None = None
        self.spoilt: SpoiltState | None = None
        """What an object keeps, NaN or infinite after a statement that wrote finite numbers to it."""
        self.now: str | None = None
        self.gave_bad = False
        """What cannot be computed again was given NaN or +inf."""
        self.known: Mapping[str, Any] = {}
        """The variables of the function that is computed which are known, whether they can be computed or not."""
        self.found, self._was_found = found, False
        self._left = MOST_STATEMENTS

    def value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        """Of an expression. Raises NotPlain, and what torch raises."""
        raise NotImplementedError

    def nested(self, node: ast.FunctionDef, values: dict[str, Any], code: CodeType) -> Callable[..., Any]:
        """A function that is defined by a statement."""
        raise NotImplementedError

    def run(self, body: Sequence[ast.stmt], values: dict[str, Any], code: CodeType) -> None:
        for n, statement in enumerate(body):
            self._left -= 1
            if self._left < 0:
                raise NotPlain("too many statements")
            self.now = line = described(code.co_filename, statement.lineno, code.co_name)
            try:
                self.compute(statement, values, code)
            except NotPlain:
                self.gave_bad |= any(_holds_bad(values.get(name)) for name in names_in(body[n:]))
                raise
            finally:
                self.look(line)

    def look(self, line: str | None) -> None:
        if not self._was_found and self.found():
            self._was_found, self.line = True, line

    def compute(self, statement: ast.stmt, values: dict[str, Any], code: CodeType) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert() | ast.AnnAssign(value=None):
                return
            case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value) if is_state(
                target
            ):
                self._state_written(statement, target, [value], values)
            case ast.Expr(value=ast.Call() as call) if (written := written_in_place(call)) is not None:
                self._state_written(statement, *written, values)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name in _SAY:
                return
            case ast.Expr(value=ast.Yield(value=ast.expr() as value)):
                values[YIELDED].append(self._held(value, values))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward"))):
                return  # it writes to gradients alone
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="requires_grad_")) as value):
                values[name] = self.value(value, values)
            case ast.Expr(value=ast.Call() as call):
                self._acts(call, values)
            case ast.Assign(targets=targets, value=value):
                self._give(targets, value, values)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._give([target], value, values)
            case ast.AugAssign(target=target, op=op, value=value):
                joined = ast.BinOp(left=target, op=op, right=value)
                self._give([target], ast.copy_location(joined, statement), values)
            case ast.Delete(targets=targets):
                values.update(dict.fromkeys(names_in(targets), MISSING))
            case ast.FunctionDef(name=name, decorator_list=[]):
                values[name] = self.nested(statement, values, code)
            case ast.Return(value=None):
                raise Returned(None)
            case ast.Return(value=ast.Tuple(elts=parts)):
                raise Returned(tuple(self._part(each, values) for each in parts))
            case ast.Return(value=ast.Dict(keys=keys, values=parts)):
                pairs = zip(keys, parts, strict=True)
                raise Returned({k.value: self._part(v, values) for k, v in pairs if isinstance(k, ast.Constant)})
            case ast.Return(value=ast.expr() as value):
                raise Returned(self._held(value, values))
            case ast.If():
                self.run(statement.body if self.value(statement.test, values) else statement.orelse, values, code)
            case ast.For(orelse=[]):
                for each in items_of(statement.iter, values, self):
                    assign(statement.target, each, values)
                    if not self._turns(statement.body, values, code):
                        break
            case ast.While(orelse=[]):
                while self.value(statement.test, values) and self._turns(statement.body, values, code):
                    pass
            case ast.Continue():
                raise Continued
            case ast.Break():
                raise Broken
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as context)]):
                with self._context(context, values):
                    self.run(statement.body, values, code)
            case _:
                raise NotPlain(ast.unparse(statement)[:100])

    def _turns(self, body: Sequence[ast.stmt], values: dict[str, Any], code: CodeType) -> bool:
        """One turn of a loop; whether another may follow."""
        try:
            self.run(body, values, code)
        except Broken:
            return False
        except Continued:
            pass
        return True

    def _context(self, call: ast.Call, values: Mapping[str, Any]) -> AbstractContextManager[Any]:
        kind = value_of(call.func, values)
        if isinstance(kind, type) and issubclass(kind, torch.autocast):
            named = {each.arg: self.value(each.value, values) for each in call.keywords if each.arg is not None}
            return kind(*(self.value(each, values) for each in call.args), **named)
        if getattr(call.func, "attr", getattr(call.func, "id", None)) not in _CHANGE_NO_VALUE:
            raise NotPlain(ast.unparse(call))
        return nullcontext()

    def _give(self, targets: Sequence[ast.expr], node: ast.expr, values: dict[str, Any]) -> None:
        """What is not plain leaves names without a value, unless it is known; what uses them is not computed either."""
        try:
            value = self._held(node, values)
            for target in targets:
                self._give_one(target, value, values)
        except NotPlain:
            values.update({name: self.known.get(name, MISSING) for name in stored_in(targets)})

    def _give_one(self, target: ast.expr, value: Any, values: dict[str, Any]) -> None:
        if isinstance(target, ast.Subscript):
            self._set_item(target, value, values)
        elif isinstance(target, ast.Tuple | ast.List):
            for inner, part in zip(target.elts, list(value), strict=True):
                self._give_one(inner, part, values)
        else:
            assign(target, value, values)

    def _set_item(self, target: ast.Subscript, value: Any, values: Mapping[str, Any]) -> None:
        owner = self._held(target.value, values)
        if value is MISSING or not self.owns(owner):
            raise NotPlain(ast.unparse(target))
        owner[self.value(target.slice, values)] = value

    def _acts(self, call: ast.Call, values: dict[str, Any]) -> None:
        """A call whose result is not used: a method writes into what it is a method of, a function into what it is
        given. What an object of the user's keeps was written to when the program ran.
        """
        try:
            self.value(call, values)
        except NotPlain:
            method_of = call.func.value if isinstance(call.func, ast.Attribute) else None
            owner = None if method_of is None else value_of(method_of, values)
            given = [*call.args, *(each.value for each in call.keywords)]
            if method_of is not None and (isinstance(owner, Tensor) or type(owner) in FILLS):
                given = [method_of]
            values.update(dict.fromkeys(stored_in(given), MISSING))

    def _held(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        """The value, whatever it is where a name or an attribute stands for it."""
        if isinstance(node, ast.Tuple) and not any(isinstance(each, ast.Starred) for each in node.elts):
            return tuple(or_missing(partial(self._held, values=values), each) for each in node.elts)
        found = value_of(node, values, MISSING)
        return self.value(node, values) if found is MISSING else found

    def _state_written(
        self, statement: ast.stmt, target: ast.expr, operands: Sequence[ast.expr], values: Mapping[str, Any]
    ) -> None:
        """What an object keeps has been written to when the program ran: what follows reads it as it is there. What it
        was before is lost, so of what was written the parts are computed that do not read it. Where these are finite,
        and it is not, it has become so here, or was before.
        """
        name = ast.unparse(target)
        parts = [self._part(part, values) for one in operands for part in parts_without(one, name)]
        state = self._part(target, values)
        if not is_bad(state):
            return
        if self.found():
            self.look(self.now)
            raise StateSpoilt
        finite = all(isinstance(part, Tensor | float | int) and not is_bad(part) for part in parts)
        if self.spoilt is None and parts and finite and isinstance(state, Tensor):
            self.spoilt = SpoiltState(name=name, value=state, operator=joins(statement, name), line=self.now)

    def _part(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        return or_missing(partial(self.value, values=values), node)


def is_bad(value: Any) -> bool:
    """A tensor, number or array of numpy that holds NaN or an infinity."""
    with _disable_current_modes():
        return not is_finite(value) if isinstance(value, Tensor) else numpy_arithmetic.is_bad(value)


def _holds_bad(value: Any) -> bool:
    """It is, or a list or tuple of them holds, a tensor with NaN or +inf: -inf alone is a mask."""
    with _disable_current_modes():
        parts = value if isinstance(value, list | tuple) else [value]
        found = [places(part, limit=0) for part in parts if isinstance(part, Tensor) and not is_finite(part)]
    return any(one.nan or one.inf for one in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiltState:
    name: str
    value: Tensor
    operator: str | None
    """By which it was written to; None where that is not one."""
    line: str | None


class StateSpoilt(Exception):
    """What was looked for was made, and an object keeps what it spoilt."""


class Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Continued(Exception):
    pass


class Broken(Exception):
    pass

"""Statements of the user's that write to gradients or weights, computed again on copies of these.

Nothing of the user's is called, and nothing else is written to.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.replay.limits import Communicates, is_collective
from finitune.monitor.statements.plain_functions import Evaluation
from finitune.monitor.user_code.arithmetic import applied, assign
from finitune.monitor.user_code.source_tree import is_in_place
from finitune.monitor.user_code.torch_arithmetic import NotPlain
from finitune.monitor.user_code.variables import value_of

_CLIPS = (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_)


class Edits(Evaluation):
    """Writes to the gradients of `parameters`, which are copies, and where these are copies too, to themselves: with
    `of_weights`. `wrote_bad` tells whether something that was written is not finite.
    """

    def __init__(self, watch: OperatorWatch, parameters: Sequence[Tensor], *, of_weights: bool = False) -> None:
        super().__init__(lambda: self.wrote_bad or watch.found() is not None)
        self.wrote_bad = False
        self._parameters = parameters
        self._of_weights = of_weights

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
                into = into.detach()
                self._look_at(into.copy_(applied(op, into, self.value(value, values))))
            case ast.Assign(targets=[ast.Subscript() as target], value=value) if self._is_own(
                into := self._there(target.value, values)
            ):
                into = into.detach()
                into[self.value(target.slice, values)] = self.value(value, values)
                self._look_at(into)
            case ast.Assign(targets=[ast.Attribute(attr="data") as target], value=value) if self._is_own(
                into := self._there(target, values)
            ):
                self._look_at(into.copy_(self.value(value, values)))
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
        """A method in place, or a chain of them."""
        calls = [(name, call)]
        while isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute) and is_in_place(owner.func.attr):
            calls.insert(0, (owner.func.attr, owner))
            owner = owner.func.value
        into = self.value(owner, values)
        own = self._is_own(into)
        written = into.detach() if own else into.clone()  # a sum that the loop keeps: another takes its place
        for method, one in calls:
            args = [self.value(each, values) for each in one.args]
            named = {each.arg: self.value(each.value, values) for each in one.keywords if each.arg is not None}
            written = getattr(written, method)(*args, **named)
        if own:
            self._look_at(written)
        else:
            assign(owner, written, values)

    def _look_at(self, gradient: Tensor | None) -> None:
        with _disable_current_modes():
            self.wrote_bad |= gradient is not None and not are_finite([gradient])

    def _is_own(self, value: Any) -> bool:
        """A gradient or a weight that may be written to, or a view of one."""
        held = [p.grad for p in self._parameters if p.grad is not None]
        held += self._parameters if self._of_weights else ()
        return isinstance(value, Tensor) and any(_same_storage(each, value) for each in held)

    def _is_trained(self, value: Any) -> bool:
        return any(p is value for p in self._parameters)


def _same_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata

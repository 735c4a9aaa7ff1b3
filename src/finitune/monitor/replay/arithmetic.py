"""An expression of plain arithmetic on tensors, computed again from the values of its variables.

Only operators, methods of tensors and functions of torch that compute: nothing that draws random numbers, writes into
a tensor or belongs to the user.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.MatMult: operator.matmul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_READ = ("shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag", "data")
_ACTS = (
    "rand", "normal", "bernoulli", "multinomial", "poisson", "dropout", "uniform", "exponential", "gumbel",
    "batch_norm", "instance_norm", "embedding", "register",
)  # fmt: skip
"""Parts of the names of what draws random numbers or writes into what it is given."""
_NOT = ("backward", "numpy", "tolist", "retain_grad", "rrelu")
_JOINS = ("stack", "cat", "concat", "where", "zeros_like", "ones_like", "full_like")
_MODULES = (torch, F, torch.linalg, torch.special)


class NotPlain(Exception):
    """The expression holds something else."""


def evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of the expression; raises NotPlain, and what torch raises."""

    def of(inner: ast.expr) -> Any:
        return evaluate(inner, values)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if _plain(values.get(node.id)):
            return values[node.id]
        case ast.BinOp() if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](of(node.left), of(node.right))
        case ast.Compare(ops=[one]) if type(one) in _BINARY:
            return _BINARY[type(one)](of(node.left), of(node.comparators[0]))
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](of(node.operand))
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.Slice():
            return slice(*(None if each is None else of(each) for each in (node.lower, node.upper, node.step)))
        case ast.Tuple():
            return tuple(map(of, node.elts))
        case ast.List():
            return [of(each) for each in node.elts]
        case ast.Attribute():
            owner = of(node.value)
            if isinstance(owner, Tensor) and node.attr in _READ:
                return getattr(owner, node.attr)
            if _is_one_of(owner, _MODULES) and _plain(found := getattr(owner, node.attr)):
                return found
        case ast.Call(func=ast.Attribute(value=owner_node, attr=method)):
            arguments = [of(each) for each in node.args]
            named = {each.arg: of(each.value) for each in node.keywords if each.arg not in (None, "out", "inplace")}
            if len(named) == len(node.keywords):
                return _function(of(owner_node), method)(*arguments, **named)
        case _:
            pass
    raise NotPlain(ast.unparse(node))


def _plain(value: Any) -> bool:
    """Tensors, numbers, and the modules of torch that have functions of them."""
    if isinstance(value, ModuleType):
        return _is_one_of(value, (*_MODULES, torch.nn))
    return type(value) in (Tensor, torch.nn.Parameter) or isinstance(value, int | float | torch.dtype)


def _function(owner: Any, name: str) -> Callable[..., Any]:
    computes = not (name.endswith("_") or name.startswith("_") or name in _NOT or any(each in name for each in _ACTS))
    if computes and isinstance(owner, Tensor):
        return getattr(owner, name)
    of_tensors = owner is not torch or hasattr(Tensor, name) or name in _JOINS
    if computes and of_tensors and _is_one_of(owner, _MODULES):
        return getattr(owner, name)
    raise NotPlain(name)


def _is_one_of(value: Any, modules: tuple[ModuleType, ...]) -> bool:
    return any(value is each for each in modules)  # by identity: a tensor is compared element by element

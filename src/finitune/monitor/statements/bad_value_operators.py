"""Operators that make a finite number bad, known by how the user's code spells them."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor

_MAKERS = {
    ast.Div: "div", "div": "div", "true_divide": "div", "log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "reciprocal": "reciprocal", "acos": "acos", "arccos": "acos", "asin": "asin", "arcsin": "asin",
    ast.Pow: "pow", "pow": "pow", "exp": "exp", "atanh": "atanh", "logit": "logit",
}  # fmt: skip
"""Operations that make NaN or inf of finite numbers, by their spelling, and the operators that they are."""


def operator_in(line: str) -> str | None:
    """Of a line as `user_line` gives it: the only operator in it that can make a finite number bad."""
    try:
        statement = ast.parse(line.partition(": ")[2].removeprefix("return ")).body[0]
    except (SyntaxError, ValueError, IndexError):  # a part of a statement
        return None
    value = getattr(statement, "value", None)
    return spelled_in(value) if isinstance(value, ast.expr) else None


def spelled_in(value: ast.expr) -> str | None:
    """The only operation in the expression that can make a finite number bad; None where it calls what is no method."""
    operations = [_operation(node) for node in ast.walk(value) if isinstance(node, ast.Call | ast.BinOp)]
    if not all(isinstance(one, type) or hasattr(Tensor, one) for one in operations):
        return None
    makers = {_MAKERS[one] for one in operations if one in _MAKERS}
    return f"aten.{makers.pop()}" if len(makers) == 1 else None


def _operation(node: ast.Call | ast.BinOp) -> Any:
    if isinstance(node, ast.BinOp):
        return type(node.op)
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""

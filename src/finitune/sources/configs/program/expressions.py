"""Operators, texts, lists and dicts of a Python file -> values."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from finitune.sources.configs.program.names import Site
from finitune.sources.configs.program.values import Computed, Reader, Symbol, known

MAX_LENGTH = 10_000
MAX_BASE, MAX_POWER = 1e6, 64
LARGEST = 1e300


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
}  # fmt: skip
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


def _constant(_reader: Reader, node: ast.Constant, _site: Site) -> Any:
    kept = node.value is None or isinstance(node.value, bool | int | float | str)
    return node.value if kept else Computed(node.lineno)


def _binary(reader: Reader, node: ast.BinOp, site: Site) -> Any:
    left: Any = reader.value(node.left, site)
    right: Any = reader.value(node.right, site)
    if isinstance(left, dict) and isinstance(right, dict) and isinstance(node.op, ast.BitOr):
        return cast(dict[str, Any], left) | cast(dict[str, Any], right)
    if isinstance(left, str) and isinstance(right, str):
        between = "/" if isinstance(node.op, ast.Div) else ""  # paths are divided
        computable = isinstance(node.op, ast.Add | ast.Div) and len(left) + len(right) < MAX_LENGTH
        return f"{left}{between}{right}" if computable else Computed(node.lineno)
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(node.op, ast.Pow) and (abs(left) > MAX_BASE or abs(right) > MAX_POWER):
            return Computed(node.lineno)
        value = _BINARY[type(node.op)](left, right)
        return value if abs(value) < LARGEST else Computed(node.lineno)
    return _as_computed(node, left, right)


def _as_computed(node: ast.expr, *parts: Any) -> Computed:
    return Computed(node.lineno, any(isinstance(one, Computed) and one.card for one in parts))


def _unary(reader: Reader, node: ast.UnaryOp, site: Site) -> Any:
    value = reader.value(node.operand, site)
    if not known(value):
        return _as_computed(node, value)
    return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value


def _either(reader: Reader, node: ast.IfExp, site: Site) -> Any:
    test = reader.value(node.test, site)
    if known(test) and not isinstance(test, Symbol):
        return reader.value(node.body if test else node.orelse, site)
    both = [reader.value(one, site) for one in (node.body, node.orelse)]
    return both[0] if known(both) and both[0] == both[1] else _as_computed(node, test)


def _logic(reader: Reader, node: ast.BoolOp, site: Site) -> Any:
    stops = isinstance(node.op, ast.Or)
    value: Any = None
    for one in node.values:
        value = reader.value(one, site)
        if not known(value) or isinstance(value, Symbol) or bool(value) is stops:
            break
    return value


def _compared(reader: Reader, node: ast.Compare, site: Site) -> Any:
    left, right = reader.value(node.left, site), reader.value(node.comparators[0], site)
    if len(node.ops) > 1 or not known([left, right]) or type(node.ops[0]) not in _COMPARE:
        return _as_computed(node, left, right)
    return _COMPARE[type(node.ops[0])](left, right)


def _text(reader: Reader, node: ast.JoinedStr, site: Site) -> Any:
    out = ""
    for part in node.values:
        value = reader.value(part.value if isinstance(part, ast.FormattedValue) else part, site)
        form = part.format_spec if isinstance(part, ast.FormattedValue) else None
        wanted = reader.value(form, site) if form is not None else ""
        if not known([value, wanted]) or isinstance(value, Symbol | Mapping | list) or re.search(r"\d{3}", wanted):
            return Computed(node.lineno)
        out += format(value, wanted)
        if len(out) > MAX_LENGTH:
            return Computed(node.lineno)
    return out


def _elements(reader: Reader, node: ast.List | ast.Tuple | ast.Set, site: Site) -> Any:
    return [reader.value(one, site) for one in node.elts[:MAX_LENGTH]]


def _mapping(reader: Reader, node: ast.Dict, site: Site) -> Any:
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        said = reader.value(value, site)
        if key is not None:
            found[str(reader.value(key, site))] = said
        elif isinstance(said, Mapping):
            found |= said
        else:
            found["**"] = Computed(value.lineno)
    return found


def _element(reader: Reader, node: ast.Subscript, site: Site) -> Any:
    base, key = reader.value(node.value, site), reader.value(node.slice, site)
    if isinstance(base, list) and isinstance(key, int):
        return cast(list[Any], base)[key]
    return cast(dict[str, Any], base)[str(key)] if isinstance(base, dict) and known(key) else Computed(node.lineno)


EXPRESSIONS: Mapping[type[ast.AST], Callable[[Reader, Any, Site], Any]] = {
    ast.Constant: _constant, ast.BinOp: _binary, ast.UnaryOp: _unary, ast.IfExp: _either, ast.BoolOp: _logic,
    ast.Compare: _compared, ast.JoinedStr: _text, ast.List: _elements, ast.Tuple: _elements, ast.Set: _elements,
    ast.Dict: _mapping, ast.Subscript: _element,
}  # fmt: skip
"""How each kind of expression is read that needs no name."""

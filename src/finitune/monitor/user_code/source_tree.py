"""The user's source as trees: the assignments of a function, with the variables that each writes and reads."""

from __future__ import annotations

import ast
import linecache
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_FILLS = ("append", "extend", "insert", "update", "setdefault")
"""Methods that put something into a container."""
BODIES = ("body", "orelse", "finalbody")
"""Of a statement that holds others."""
SYMBOLS: Mapping[type[ast.operator], str] = {
    ast.Div: "div", ast.Mult: "mul", ast.Pow: "pow", ast.Add: "add", ast.Sub: "sub", ast.MatMult: "mm",
}  # fmt: skip
"""The operators that are spelled by a sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    line: int
    writes: frozenset[str]
    reads: frozenset[str]
    value: ast.expr
    computes: ast.AST
    """The value, with the operator of `x /= y`."""
    target: ast.expr | None
    """What an assignment with a single target gives the value to."""

    @staticmethod
    def of(value: ast.expr, name: str) -> Statement:
        """An expression, as a statement that gives its value to a variable of that name."""
        return Statement(
            line=value.lineno, writes=frozenset({name}), reads=names_in([value]), value=value, computes=value,
            target=ast.Name(id=name),
        )  # fmt: skip

    @property
    def expression(self) -> ast.expr:
        """What it computes: of `x /= y` the quotient."""
        node = self.computes
        return (
            ast.BinOp(left=node.target, op=node.op, right=node.value) if isinstance(node, ast.AugAssign) else self.value
        )


_PARSING = threading.Lock()
_TRIES = 3


@lru_cache(maxsize=16)
def parsed(file: str) -> ast.Module | None:
    """None where it is not Python. Python 3.11 counts in one place how deep the trees of all threads are, and raises
    SystemError where two are made at once.
    """
    text = "".join(linecache.getlines(file))
    for _ in range(_TRIES):
        try:
            with _PARSING:
                return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None
        except SystemError:
            continue
    return None


def scope_of(code: CodeType) -> ast.AST | None:
    """The function that was compiled to `code`, or the file; None where its source is not there."""
    tree, name = parsed(code.co_filename), code.co_name
    if tree is None or name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            begins = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if begins == code.co_firstlineno:
                return node
    return None


def lambda_of(code: CodeType) -> ast.Lambda | None:
    """The one that was compiled to `code`; None where several begin in its line."""
    nodes = ast.walk(parsed(code.co_filename) or ast.Module(body=[], type_ignores=[]))
    found = [node for node in nodes if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    return found[0] if code.co_name == "<lambda>" and len(found) == 1 else None


def nodes_in(scope: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, without functions and classes that are defined within."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, _SCOPES):
            yield node
            yield from nodes_in(node)


def loops_at(scope: ast.AST, line: int) -> list[ast.For | ast.While]:
    """Those that the line stands in, outermost first."""
    loops = (node for node in nodes_in(scope) if isinstance(node, ast.For | ast.While))
    return [loop for loop in loops if holds_line(loop, line)]


def before_line(scope: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements that lead to the one in that line, without those of other branches."""
    for block, at in _blocks_around(scope, line):
        yield from block[:at]


def after_line(scope: ast.AST, line: int) -> Iterator[ast.stmt]:
    """Those that follow it, likewise."""
    for block, at in reversed(list(_blocks_around(scope, line))):
        yield from block[at + 1 :]


def _blocks_around(scope: ast.AST, line: int) -> Iterator[tuple[list[ast.stmt], int]]:
    """The blocks that the line stands in, outermost first, each with the number of the statement that holds it."""
    for name in BODIES:
        block: list[ast.stmt] = getattr(scope, name, [])
        at = next((n for n, one in enumerate(block) if holds_line(one, line)), None)
        if at is not None:
            yield block, at
            yield from _blocks_around(block[at], line)


def are_in_branches(scope: ast.AST, one: int, other: int) -> bool:
    """Of these two lines only one runs in each pass: they stand in different branches of an `if`."""
    branches = ((node.body, node.orelse) for node in nodes_in(scope) if isinstance(node, ast.If))
    return any(
        any(holds_line(each, first) for each in body) and any(holds_line(each, second) for each in orelse)
        for body, orelse in branches
        for first, second in ((one, other), (other, one))
    )


def holds_line(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def statements_in(scope: ast.AST) -> Iterator[Statement]:
    """Its assignments, without those of functions defined within."""
    for node in nodes_in(scope):
        yield from _written(node)


def feeding(names: Iterable[str], statements: Sequence[Statement]) -> list[Statement]:
    """Those that write one of the variables, or what goes into it, in whatever order they run."""
    known, found = set(names), list[Statement]()
    while more := [one for one in statements if one.writes & known and one not in found]:
        found += more
        known |= {name for one in more for name in one.reads}
    return found


def _written(node: ast.AST) -> Iterator[Statement]:
    if isinstance(node, ast.Assign):
        targets, value, more = node.targets, node.value, []
    elif isinstance(node, ast.AugAssign):
        targets, value, more = [node.target], node.value, [node.target]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value, more = [node.target], node.value, []
    elif isinstance(node, ast.For | ast.AsyncFor):
        targets, value, more = [node.target], node.iter, []
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and (owner := _writes_to(node.value.func)):
        targets, value, more = [owner], node.value, [owner]
    else:
        return
    partly = [one for one in targets if isinstance(one, ast.Subscript)]  # x[3] = 0 leaves the rest as it was
    reads = names_in([value, *more, *partly])
    computes = node if isinstance(node, ast.AugAssign) else value
    assigns = isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and len(targets) == 1
    target = targets[0] if assigns else None
    yield Statement(
        line=value.lineno, writes=stored_in(targets), reads=reads, value=value, computes=computes, target=target
    )


def _writes_to(function: ast.expr) -> ast.Name | None:
    """The variable that a method in place is called of, as in `x.div_(y)` or `losses.append(x)`."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    return function.value if is_in_place(function.attr) or function.attr in _FILLS else None


def is_in_place(method: str) -> bool:
    """The name of a method of tensors that writes into its tensor."""
    return method.endswith("_") and not method.endswith("__")


def names_in(nodes: Iterable[Any]) -> frozenset[str]:
    return frozenset(n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))


def stored_in(nodes: Iterable[ast.expr]) -> frozenset[str]:
    """The variables that are assigned to, or whose values may be written to: no indices, and nothing of an object's."""
    found: set[str] = set()
    for node in nodes:
        while isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Tuple | ast.List):
            found |= stored_in(node.elts)
    return frozenset(found)


def is_state(target: ast.expr) -> bool:
    """An attribute, or an element of one."""
    return isinstance(target.value if isinstance(target, ast.Subscript) else target, ast.Attribute)


def written_in_place(call: ast.expr) -> tuple[ast.expr, list[ast.expr]] | None:
    """Of `self.mean.mul_(a).add_(b)` the attribute and the operands."""
    operands: list[ast.expr] = []
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and is_in_place(call.func.attr):
        operands = [*call.args, *(each.value for each in call.keywords), *operands]
        call = call.func.value
    return (call, operands) if operands and is_state(call) else None


def joins(statement: ast.stmt, target: str) -> str | None:
    """The one operator by which `self.sum = self.sum * x`, `self.sum *= x` or `self.sum.mul_(x)` writes to the target;
    None where there are several.
    """
    match statement:
        case ast.AugAssign(op=op):
            return SYMBOLS.get(type(op))
        case ast.Assign(value=ast.BinOp(op=op) as value) if target in map(ast.unparse, (value.left, value.right)):
            return SYMBOLS.get(type(op))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name))) if ast.unparse(owner) == target:
            return name.removesuffix("_")
        case _:
            return None


def parts_without(node: ast.expr, target: str) -> Iterator[ast.expr]:
    """The operands of plain arithmetic, as large as they are without reading the target."""
    if all(ast.unparse(each) != target for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Subscript)):
        yield node
    elif isinstance(node, ast.BinOp):
        yield from parts_without(node.left, target)
        yield from parts_without(node.right, target)

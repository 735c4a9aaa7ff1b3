"""Where the user's own code spells an operator of its loss: the only line in what the loss is computed with.

A replay computes the loss from its graph, in which no lines stand. What the loop calls `backward` of is followed back
through its variables, and into the functions that it calls: where just one line in all that spells the operator, it is
the one. Nothing is called; names are looked up.
"""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from finitune.monitor.loss_graph.node_operators import operator_name
from finitune.monitor.user_code.callbacks import Callback
from finitune.monitor.user_code.frame_variables import locals_of, variables_of
from finitune.monitor.user_code.source_line import described, is_users, user_frames
from finitune.monitor.user_code.source_tree import SYMBOLS, names_in, scope_of, statements_in
from finitune.monitor.user_code.variables import function_behind, names_within, value_of

MOST_FUNCTIONS = 64
_LOSSES = ("training_step", "compute_loss")
"""Of Lightning's modules, of transformers' trainers."""
_SAME = {
    "truedivide": "div", "divide": "div", "multiply": "mul", "square": "pow", "arccos": "acos", "arcsin": "asin",
    "norm": "linalgvectornorm", "vectornorm": "linalgvectornorm", "rsub": "sub",
}  # fmt: skip
_CALLS = {"crossentropy": ("nllloss", "nllloss2d", "logsoftmax"), "normalize": ("div", "linalgvectornorm")}
"""Functions of torch that call operators of other names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A piece of the user's source, where it stands, and what the names in it stand for."""

    node: ast.AST
    file: str
    function: str
    names: Mapping[str, Any]


def only_place(node: str) -> str | None:
    """The line that spells the operator of an autograd node (`SqrtBackward0`), as `user_line` gives it; None where no
    place does, or several do.
    """
    name = operator_name(node)
    if name is None:
        return None
    frame, roots = next(((frame, roots) for frame in user_frames() if (roots := roots_of(frame))), (None, []))
    return _only(name, _followed(_given_to_trainers()) if frame is None else reached(frame, _behind(frame, roots)))


def only_place_of(op: str, statement: str) -> str | None:
    """The same of an operator (`aten.exp`), in what the statement in this line of a running frame computes."""
    for frame in user_frames():
        scope, code = scope_of(frame.f_code), frame.f_code
        for one in statements_in(scope) if scope is not None else ():
            if described(code.co_filename, one.line, code.co_name) == statement:
                return _only(op.removeprefix("aten."), reached(frame, [one.computes]))
    return None


def _only(name: str, codes: Iterable[Code]) -> str | None:
    wanted = _operator(name)
    found: dict[tuple[str, int], Code] = {}
    # Of a function within another that one comes last, and gives the name.
    for code in sorted(codes, key=lambda code: getattr(code.node, "lineno", 0)):
        for each in ast.walk(code.node):
            if isinstance(each, ast.BinOp | ast.AugAssign | ast.Call) and _spells(each, wanted, code.names):
                found[code.file, each.lineno] = code
    if len(found) != 1:
        return None
    ((file, line), code) = found.popitem()
    return described(file, line, code.function)


def _operator(name: str) -> str:
    plain = name.replace("_", "").lower()
    return _SAME.get(plain, plain)


def _spells(node: ast.BinOp | ast.AugAssign | ast.Call, wanted: str, names: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Call):
        function, value = node.func, value_of(node.func, names)
        if isinstance(value, type):  # `nn.CTCLoss()` computes nothing yet
            return False
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        name = type(value).__name__ if isinstance(value, nn.Module) else name
        own = _operator(name)
        return wanted in (own, f"linalg{own}", f"special{own}", *_CALLS.get(own.removesuffix("loss"), ()))
    if isinstance(node, ast.BinOp) and (_is_text(node.left) or _is_text(node.right)):
        return False
    return SYMBOLS.get(type(node.op)) == wanted


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def roots_of(frame: FrameType) -> list[ast.expr]:
    """What the frame's own code has called `backward` of since its last `step`: `x` in `x.backward()`, in
    `accelerator.backward(x)`.
    """
    scope = scope_of(frame.f_code)
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)] if scope is not None else []
    methods = [(one.func, one.args) for one in calls if isinstance(one.func, ast.Attribute)]
    steps = [each.lineno for each, _ in methods if each.attr == "step" and each.lineno < frame.f_lineno]
    backwards = [(each, args) for each, args in methods if each.attr == "backward"]
    recent = [one for one in backwards if max(steps, default=0) < one[0].lineno <= frame.f_lineno]
    return [part for each, args in recent or backwards for part in (each.value, *args)]


def _behind(frame: FrameType, roots: list[ast.expr]) -> list[ast.AST]:
    """What these variables of the frame are computed with, by all of its statements that write to one."""
    scope = scope_of(frame.f_code)
    statements = list(statements_in(scope)) if scope is not None else []
    nodes: list[ast.AST] = [*roots]
    wanted = set(names_in(roots))
    while taken := [one for one in statements if one.writes & wanted]:
        statements = [one for one in statements if one not in taken]
        nodes += [one.computes for one in taken]
        wanted |= {name for one in taken for name in one.reads}
    return nodes


def reached(frame: FrameType | Callback, nodes: Iterable[ast.AST], *, variables: bool = True) -> Iterator[Code]:
    """These nodes of the frame's own code, and all functions of the user's that they call. Without its `variables`
    those of global names alone: Python keeps what the variables of a function hold once they are read.
    """
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    names = variables_of(frame) if variables else dict(frame.f_globals)
    return _followed(Code(node=node, file=file, function=function, names=names) for node in nodes)


def _given_to_trainers() -> Iterator[Code]:
    """The methods that compute the loss for a trainer of a library, which calls the backward by itself: of the objects
    in whose methods the program runs now.
    """
    seen: set[Any] = set()
    for frame, _ in traceback.walk_stack(sys._getframe()):
        own = locals_of(frame).get("self")
        for name in _LOSSES:
            function, _ = function_behind(inspect.getattr_static(type(own), name, None))
            if function is not None and function.__code__ not in seen and is_users(function.__code__.co_filename):
                seen.add(function.__code__)
                yield from _code_of(function, own)


def _followed(codes: Iterable[Code]) -> Iterator[Code]:
    open_, seen = list(codes), set[Any]()
    while open_:
        code = open_.pop()
        yield code
        for function, own in _called(code):
            if function.__code__ not in seen and len(seen) < MOST_FUNCTIONS and is_users(function.__code__.co_filename):
                seen.add(function.__code__)
                open_ += _code_of(function, own)


def _called(code: Code) -> Iterator[tuple[FunctionType, Any]]:
    """The functions that it calls, each with the object whose method it is."""
    for node in ast.walk(code.node):
        if isinstance(node, ast.Call):
            function, own = function_behind(value_of(node.func, code.names))
            if function is not None:
                yield function, own


def _code_of(function: FunctionType, own: Any) -> list[Code]:
    node, code = scope_of(function.__code__), function.__code__
    if node is None:
        return []
    bound = {code.co_varnames[0]: own} if own is not None and code.co_varnames else {}
    names = {**names_within(function), **bound}
    return [Code(node=node, file=code.co_filename, function=function.__name__, names=names)]

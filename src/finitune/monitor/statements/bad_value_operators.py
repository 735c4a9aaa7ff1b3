"""Operators that make a finite number bad, known by how the user's code spells them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.utils.checkpoint import checkpoint

from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.source_line import described, is_users
from finitune.monitor.user_code.source_tree import Statement, feeding, holds_line, loops_at, scope_of
from finitune.monitor.user_code.variables import function_behind, names_within, value_of

_MAKERS = {
    ast.Div: "div", "div": "div", "true_divide": "div", "log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "reciprocal": "reciprocal", "acos": "acos", "arccos": "acos", "asin": "asin", "arcsin": "asin",
    ast.Pow: "pow", "pow": "pow", "exp": "exp", "atanh": "atanh", "logit": "logit",
}  # fmt: skip
"""Operations that make NaN or inf of finite numbers, by their spelling, and the operators that they are."""
OF_NOTHING = ("mean", "var", "std", "nanmean")
"""What is NaN of no elements, and finite of finite ones."""
_HARMLESS = frozenset((
    "ones", "zeros", "full", "arange", "eye", "linspace", "tensor", "as_tensor", "ones_like", "zeros_like", "full_like",
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "stack", "cat", "cdist", "einsum", "meshgrid",
    "len", "range", "zip", "enumerate", "list", "tuple", "dict", "set", "sorted", "reversed", "int", "float", "bool",
    "append", "extend", "items", "keys", "values", "get", "pop", "no_grad", "inference_mode", "enable_grad", "slice",
    "next", "iter", "print", "str", "format", "isinstance", "hasattr", "getattr", "from_numpy", "manual_seed",
    "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "state_dict",
    "train", "eval",
))  # fmt: skip
"""What makes no finite number bad, beside methods of tensors."""
_OF_TORCH = ("torch.nn.", "torch.ao.nn.")
"""Modules that make no finite input bad where their weights are finite, but for losses."""
MOST_CALLS = 4
"""Of functions within one another."""


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
    nodes = [node for node in ast.walk(value) if isinstance(node, ast.Call | ast.BinOp) and not _is_whole_power(node)]
    operations = [_operation(node) for node in nodes]
    if not all(isinstance(one, type) or hasattr(Tensor, one) for one in operations):
        return None
    makers = {_MAKERS[one] for one in operations if one in _MAKERS}
    return f"aten.{makers.pop()}" if len(makers) == 1 else None


Maker = tuple[str, str]
"""The operator, and its line."""


def only_maker_within(value: ast.expr, values: Mapping[str, Any]) -> Maker | None:
    """Of an expression that can make a finite number bad by one operation alone, which stands in a function of the
    user's that it calls; None where several can, or where a call of something else may.
    """
    return only_one(makers_in(value, values, None))


def only_maker_in_loop(
    frame: FrameType | EndedFrame, statements: Sequence[Statement], name: str, values: Mapping[str, Any]
) -> Maker | None:
    """Of all statements of the loop that runs which write a variable, or what goes into it, in whatever pass: the only
    operation that can have made a finite number bad, in a function of the user's; None as for `only_maker_within`.
    """
    scope = scope_of(frame.f_code)
    loops = loops_at(scope, frame.f_lineno) if scope is not None else []
    within = [one for one in statements if loops and holds_line(loops[0], one.line)]
    return only_one(made for one in feeding([name], within) for made in makers_in(one.computes, values, None))


def only_one(makers: Iterable[Maker | None], *, of_nothing: bool = False) -> Maker | None:
    """The only one of these, as `makers_in` gives them; None where there are several, or where a call is of nothing
    known. Those that need to be given nothing count only where there are no others, and what was made may be NaN
    `of_nothing`.
    """
    try:
        found = list(dict.fromkeys(makers))
    except LookupError:
        return None
    others = [one for one in found if one is None or one[0].removeprefix("aten.") not in OF_NOTHING]
    found = others or (found if of_nothing else [])
    return found[0] if len(found) == 1 else None


def makers_in(
    root: ast.AST, values: Mapping[str, Any], where: tuple[str, str] | None, depth: int = 0
) -> Iterator[Maker | None]:
    """All such operations, in functions too that it calls. `where` are the file and the function in which it stands;
    None for one where that is not given. Raises LookupError where a call is of nothing known, or NaN or inf is written.
    """
    for node in ast.walk(root):
        if _is_bad_number(node):
            raise LookupError(ast.unparse(node))
        if not isinstance(node, ast.Call | ast.BinOp | ast.AugAssign) or _is_of_numbers(node, values):
            continue
        if _is_whole_power(node):
            continue
        operation = _name(node) if isinstance(node, ast.Call) else type(node.op)
        called = _called(node, values) if isinstance(node, ast.Call) else None
        function, own = function_behind(called, of_models=True)
        if function is not None and is_users(function.__code__.co_filename):
            yield from _within(function, own, depth)
        elif isinstance(called, nn.Module):
            for each in called.modules():
                function, own = function_behind(each, of_models=True)
                if function is not None and is_users(function.__code__.co_filename):
                    yield from _within(function, own, depth)
                elif not type(each).__module__.startswith(_OF_TORCH) or isinstance(each, _Loss):
                    raise LookupError(type(each).__name__)
        elif (made := _made_by(operation)) is not None:
            line = described(where[0], node.lineno, where[1]) if where is not None else None
            yield (f"aten.{made}", line) if line is not None else None
        elif isinstance(operation, str) and not hasattr(Tensor, operation) and operation not in _HARMLESS:
            raise LookupError(operation)


def _called(call: ast.Call, values: Mapping[str, Any]) -> Any:
    """What is called in it, by torch where that is given it to be computed twice."""
    called = value_of(call.func, values)
    return value_of(call.args[0], values) if called is checkpoint and call.args else called


def _within(function: FunctionType, own: Any, depth: int) -> Iterator[Maker | None]:
    """Of a function of the user's, and the object whose method it is."""
    code, scope, values = function.__code__, scope_of(function.__code__), names_within(function)
    if scope is None or depth == MOST_CALLS:
        raise LookupError(function.__name__)
    if own is not None and code.co_argcount:
        values[code.co_varnames[0]] = own
    yield from makers_in(scope, values, (code.co_filename, code.co_name), depth + 1)


def _is_of_numbers(node: ast.expr | ast.AugAssign, values: Mapping[str, Any]) -> bool:
    """Of numbers of Python's own, which raises where it would make one bad, as functions of `math` do."""
    match node:
        case ast.Call(func=function):
            return getattr(value_of(function, values), "__module__", None) == "math"
        case ast.BinOp(left=left, right=right):
            return _is_of_numbers(left, values) and _is_of_numbers(right, values)
        case ast.UnaryOp(operand=operand):
            return _is_of_numbers(operand, values)
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name() | ast.Attribute():
            return type(value_of(node, values)) in (int, float, bool)
        case _:
            return False


def _is_whole_power(node: ast.AST) -> bool:
    """`x ** 2`, `x.pow(2)`: a product."""
    match node:
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=int(power))):
            return power >= 0
        case ast.Call(func=ast.Attribute(attr="pow" | "pow_"), args=[*_, ast.Constant(value=int(power))]):
            return power >= 0
        case _:
            return False


def _is_bad_number(node: ast.AST) -> bool:
    """`math.nan`, `torch.inf`, the "nan" of `float("nan")`."""
    match node:
        case ast.Attribute(attr=name) | ast.Constant(value=str() as name):
            return name.lower().lstrip("+-") in ("nan", "inf", "infinity")
        case _:
            return False


def _made_by(operation: str | type[ast.operator]) -> str | None:
    """The operator, where it can make a finite number bad; `div_` is one as `div` is."""
    spelled = operation.removesuffix("_") if isinstance(operation, str) else operation
    return spelled if isinstance(spelled, str) and spelled in OF_NOTHING else _MAKERS.get(spelled)


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _operation(node: ast.Call | ast.BinOp) -> Any:
    if isinstance(node, ast.BinOp):
        return type(node.op)
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""

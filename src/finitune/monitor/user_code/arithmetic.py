"""An expression of plain arithmetic on tensors, computed again from the values of its variables.

Only operators, methods of tensors and functions of torch that compute: nothing that draws random numbers, writes into
what was there before or belongs to the user. What the user's own functions make of their arguments is asked of the
caller, which also keeps what was made on the way: that may be written into.
"""

from __future__ import annotations

import ast
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from finitune.monitor.user_code import numpy_arithmetic, seeded_generators
from finitune.monitor.user_code.source_tree import SYMBOLS, is_in_place
from finitune.monitor.user_code.torch_arithmetic import MODULES, NotPlain, computes, function_of, is_one_of  # fmt: skip
from finitune.monitor.user_code.variables import value_of

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.MatMult: operator.matmul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Is: operator.is_,
    ast.IsNot: operator.is_not, ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_READ = ("shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag", "data", "grad")
_BUILTINS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        len, min, max, abs, float, int, bool, round, sum, any, all, range, zip, enumerate, reversed, list, tuple,
        str,
    )
}  # fmt: skip
_ONCE = (zip, enumerate, reversed)
"""What these return can be gone through once; a list stands for it."""
FILLS = {
    list: ("append", "extend", "insert", "pop", "reverse", "clear"),
    dict: ("update", "setdefault", "pop", "clear"),
    deque: ("append", "appendleft", "extend", "pop", "popleft", "clear"),
}
"""Methods that write into containers."""
DICTIONARIES = (dict, OrderedDict, defaultdict)
MOST = 1024
"""Elements of a container whose values are taken for plain."""
_UNKNOWN = object()
MISSING = object()
"""The value of what is more than plain arithmetic."""


class Asked:
    """What an expression needs besides the values of its names. This one knows nothing."""

    draws = False
    """Whether random numbers are drawn, as where their state is the one that the program had."""

    def called(self, node: ast.expr, values: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of the user's function at a node, with the values of the names there, its arguments, and those by
        name. Raises NotPlain.
        """
        raise NotPlain(ast.unparse(node))

    def read(self, owner: Any, attribute: property) -> Any:
        """What a property of a class of the user's gives. Raises NotPlain."""
        raise NotPlain("a property")

    def bears_missing(self, node: ast.expr, values: Mapping[str, Any]) -> bool:
        """Whether some of what the function at a node is given may be MISSING."""
        return False

    def function(self, node: ast.Lambda, values: Mapping[str, Any]) -> Callable[..., Any]:
        """What computes a function that is defined in the expression. Raises NotPlain."""
        raise NotPlain(ast.unparse(node))

    def made(self, container: Any) -> Any:
        """The same container, which an expression has just made."""
        return container

    def computed(self, value: Any, name: str, operands: Iterable[Any]) -> Any:
        """The same value, which an operation of this name has just computed of the operands."""
        return value

    def owns(self, value: Any) -> bool:
        """Whether a tensor or container was made here, and may be written into."""
        return False


def applied(op: ast.operator, left: Any, right: Any) -> Any:
    """`left` and `right` joined by an operator; neither is written to."""
    if type(op) not in _BINARY:
        raise NotPlain(type(op).__name__)
    return _BINARY[type(op)](left, right)


def evaluate(node: ast.expr, values: Mapping[str, Any], asked: Asked | None = None) -> Any:
    """The value of the expression; raises NotPlain, and what torch raises."""
    asked = asked or Asked()

    def of(inner: ast.expr) -> Any:
        return evaluate(inner, values, asked)

    def each_of(nodes: Sequence[ast.expr], value: Callable[[ast.expr], Any] = of) -> list[Any]:
        found: list[Any] = []
        for inner in nodes:
            found += items_of(inner.value, values, asked) if isinstance(inner, ast.Starred) else [value(inner)]
        return found

    def argument(inner: ast.expr) -> Any:
        found = value_of(inner, values, _UNKNOWN)
        computed = found is _UNKNOWN or (isinstance(inner, ast.Attribute) and inner.attr in _READ)
        return of(inner) if computed else found

    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute() if (found := value_of(node, values, _UNKNOWN)) is None or _plain(found):
            return found
        case ast.Attribute() if isinstance(found := value_of(node, values), property):
            return asked.read(value_of(node.value, values), found)
        case ast.BinOp():
            left, right = of(node.left), of(node.right)
            found = asked.computed(applied(node.op, left, right), SYMBOLS.get(type(node.op), ""), (left, right))
            return asked.made(found) if type(found) is list else found
        case ast.Compare() if all(type(one) in _BINARY for one in node.ops):
            return _compared(of(node.left), node.ops, map(of, node.comparators))
        case ast.BoolOp():
            return _joined(node.op, map(of, node.values))
        case ast.UnaryOp(op=ast.Not()):
            return not of(node.operand)
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](of(node.operand))
        case ast.IfExp():
            return of(node.body if of(node.test) else node.orelse)
        case ast.Subscript():
            owner = value_of(node.value, values)
            there = type(owner) in (list, tuple)  # whatever else it holds
            found = owner.get(of(node.slice)) if type(owner) in DICTIONARIES else (
                (owner if there else of(node.value))[of(node.slice)]
            )  # fmt: skip
            if _plain(found):
                return found
        case ast.Slice():
            return slice(*(None if each is None else of(each) for each in (node.lower, node.upper, node.step)))
        case ast.Tuple():
            return tuple(each_of(node.elts))
        case ast.List():
            return asked.made(each_of(node.elts))
        case ast.Dict() if None not in node.keys:
            keys = [of(each) for each in node.keys if each is not None]
            return asked.made(dict(zip(keys, map(argument, node.values), strict=True)))
        case ast.ListComp() | ast.GeneratorExp():
            rounds = _rounds(node.generators, values, asked)
            return asked.made([evaluate(node.elt, inner, asked) for inner in rounds])
        case ast.DictComp():
            rounds = _rounds(node.generators, values, asked)
            return asked.made({evaluate(node.key, i, asked): evaluate(node.value, i, asked) for i in rounds})
        case ast.Lambda():
            return asked.function(node, values)
        case ast.Attribute():
            owner = of(node.value)
            if (isinstance(owner, Tensor) and node.attr in _READ) or _is_result(owner):
                return getattr(owner, node.attr)
            if numpy_arithmetic.is_array(owner) and node.attr in numpy_arithmetic.ATTRIBUTES:
                return getattr(owner, node.attr)
            found = value_of(ast.Attribute(value=ast.Name("it"), attr=node.attr), {"it": owner})
            if isinstance(found, property):
                return asked.read(owner, found)
            if _plain(found):
                return found
        case ast.JoinedStr():
            return "".join(of(each) for each in node.values)
        case ast.FormattedValue(conversion=-1, format_spec=None) if isinstance(part := of(node.value), int | str):
            return str(part)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner_node, name_node]) if "getattr" not in values:
            found = value_of(ast.Attribute(value=owner_node, attr=str(of(name_node))), values)
            if _plain(found):
                return found
        case ast.Call():
            if not any(each.arg in ("out", "inplace") for each in node.keywords):
                bears = asked.bears_missing(node.func, values)
                given = partial(or_missing, argument) if bears else argument
                named = _named(node.keywords, values, given, partial(or_missing, of) if bears else of)
                return _result(node.func, values, each_of(node.args, given), named, asked)
        case _:
            pass
    raise NotPlain(ast.unparse(node))


def or_missing(value: Callable[[ast.expr], Any], node: ast.expr) -> Any:
    """The value of an expression, MISSING where it is not plain."""
    try:
        return value(node)
    except NotPlain:
        return MISSING


def _named(
    keywords: Sequence[ast.keyword], values: Mapping[str, Any], argument: Callable[[ast.expr], Any],
    of: Callable[[ast.expr], Any],
) -> dict[str, Any]:  # fmt: skip
    """What a call is given by name, in a dictionary too."""
    found: dict[str, Any] = {}
    for each in keywords:
        if each.arg is not None:
            found[each.arg] = argument(each.value)
            continue
        there = value_of(each.value, values)
        there = there if type(there) in DICTIONARIES else of(each.value)
        if type(there) in DICTIONARIES and len(there) <= MOST:
            found |= there
        elif there is not MISSING:
            raise NotPlain(ast.unparse(each.value))
    return found


def _rounds(
    generators: Sequence[ast.comprehension], values: Mapping[str, Any], asked: Asked
) -> Iterator[Mapping[str, Any]]:
    """The names of a comprehension, once for each of its elements."""
    if not generators:
        yield values
        return
    first, *others = generators
    items = items_of(first.iter, values, asked)
    if first.is_async or len(items) > MOST:
        raise NotPlain(ast.unparse(first.iter))
    for each in items:
        assign(first.target, each, inner := dict(values))
        if all(evaluate(test, inner, asked) for test in first.ifs):
            yield from _rounds(others, inner, asked)


def items_of(node: ast.expr, values: Mapping[str, Any], asked: Asked) -> Sequence[Any]:
    """What a loop goes through; a list that is there whatever it holds, modules too, and the keys of a dictionary."""
    there = value_of(node, values)
    if type(there) in (nn.ModuleList, nn.Sequential, nn.ParameterList):
        return list(there)
    if type(there) in DICTIONARIES and len(there) <= MOST:
        return list(there)
    return there if isinstance(there, list | tuple) and len(there) <= MOST else list(evaluate(node, values, asked))


def _result(
    node: ast.expr, values: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any], asked: Asked
) -> Any:
    owner = None
    if seeded_generators.makes_source(called := value_of(node, values), args):
        return asked.made(called(*args))
    if isinstance(node, ast.Name) and node.id in _BUILTINS and node.id not in values:
        function = _BUILTINS[node.id]
        if function is len and type(args[0]) in (list, tuple, dict):  # whatever it holds
            return len(args[0])
        if function in _ONCE:
            there = all(type(each) in (list, tuple) and len(each) <= MOST for each in args)  # likewise
            return asked.made(list(function(*args, **named) if there else _applied(function, node.id, args, named)))
    elif isinstance(node, ast.Attribute):
        owner = value_of(node.value, values)
        try:
            there = isinstance(owner, Distribution) or type(owner) in FILLS or seeded_generators.is_source(owner)
            owner = owner if there else evaluate(node.value, values, asked)
        except NotPlain:
            return asked.called(node, values, args, named)
        if (_writes(owner, node.attr) or seeded_generators.is_source(owner)) and asked.owns(owner):
            return asked.computed(getattr(owner, node.attr)(*args, **named), node.attr, (owner, *args))
        if type(owner) is dict:
            return asked.called(node, values, args, named)
        source = seeded_generators.draws_from(named)
        function = function_of(owner, node.attr, draws=asked.draws if source is None else asked.owns(source))
    else:
        return asked.called(node, values, args, named)
    found = _applied(function, ast.unparse(node), args, named)
    return asked.computed(found, getattr(node, "attr", getattr(node, "id", "")), (owner, *args, *named.values()))


def applied_by_name(function: Any, args: Sequence[Any], named: Mapping[str, Any], *, draws: bool) -> Any:
    """What a function of torch or `math` gives that a variable stands for, as after `from torch import log`. Raises
    NotPlain for any other.
    """
    name = getattr(function, "__name__", "").removeprefix("special_").removeprefix("linalg_")
    owner = next((each for each in MODULES if function is not None and vars(each).get(name) is function), None)
    if owner is None:
        raise NotPlain(name)
    return _applied(function_of(owner, name, draws=draws), name, args, named)


def _applied(function: Callable[..., Any], spelled: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    source = seeded_generators.draws_from(named)
    plain = all(value is None or value is source or _plain(value) for value in (*args, *named.values()))
    if not plain or numpy_arithmetic.writes(function, args, named):
        raise NotPlain(spelled)
    if (getattr(function, "__module__", None) or "").startswith("torch"):  # a tensor may share the memory of an array
        args = [each.copy() if numpy_arithmetic.is_array(each) else each for each in args]
    return function(*args, **named)


def _writes(owner: Any, name: str) -> bool:
    """Whether a method writes into what it is a method of, and draws no random numbers."""
    if isinstance(owner, Tensor):
        return is_in_place(name) and computes(name[:-1]) and name != "requires_grad_"
    return name in FILLS.get(type(owner), ())


def _plain(value: Any) -> bool:
    """Tensors, numbers, containers of them, and the modules of torch that have functions of them."""
    if isinstance(value, ModuleType):
        return is_one_of(value, (*MODULES, nn)) or numpy_arithmetic.is_module(value)
    if type(value) in (list, tuple, deque) or _is_result(value):
        return len(value) <= MOST and all(map(_plain, value))
    if type(value) in DICTIONARIES:
        return len(value) <= MOST and all(map(_plain, value.values()))
    if type(value) is range:
        return len(value) <= MOST
    if numpy_arithmetic.is_array(value) or numpy_arithmetic.is_number_type(value):
        return True
    return type(value) in (Tensor, torch.nn.Parameter, str, slice) or isinstance(
        value, Real | torch.dtype | torch.device | torch.Size
    )


def _is_result(value: Any) -> bool:
    """What torch returns of functions with several results, as `max` with a dimension."""
    return type(value).__module__ == "torch.return_types"


def _compared(left: Any, ops: Sequence[ast.cmpop], others: Iterator[Any]) -> Any:
    """`a < b < c`."""
    found: Any = True
    for op, right in zip(ops, others, strict=False):
        found = _BINARY[type(op)](left, right)
        if len(ops) > 1 and not found:
            return found
        left = right
    return found


def _joined(op: ast.boolop, parts: Iterator[Any]) -> Any:
    """`a and b`, `a or b`: what follows is not computed where the first decides."""
    found: Any = None
    for found in parts:
        if bool(found) == isinstance(op, ast.Or):
            return found
    return found


def assign(target: ast.expr, value: Any, values: dict[str, Any]) -> None:
    """Give the names of a target of `=` or `for` their values."""
    if isinstance(target, ast.Name):
        values[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        for inner, part in zip(target.elts, list(value), strict=True):
            assign(inner, part, values)
    else:
        raise NotPlain(ast.unparse(target))

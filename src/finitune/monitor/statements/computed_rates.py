"""The statement that has made a learning rate bad, where the program computes it of tensors: of gradients, of the loss,
of how noisy they are. What a schedule computes of the number of the step is not looked for.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.statements.attribute_writers import only_maker_of, user_trees
from finitune.monitor.statements.bad_statement import made_in
from finitune.monitor.user_code.bad_tensors import bad_tensor_in
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import Statement, names_in, nodes_in, scope_of

_RATE = "lr"


def bad_rate(rate: Tensor | float | None) -> Origin | None:
    """The first statement with a bad result that this learning rate was computed of, in a frame that runs; else, where
    it is the number in a tensor, the only operation that can have made it bad. None where it is finite, or nothing
    shows it.
    """
    if rate is None or math.isfinite(float(rate)):
        return None
    with suppress(Exception):  # a variable that cannot be looked at
        scopes = ((frame, scope_of(frame.f_code)) for frame in user_frames())
        rates = ((frame, rate) for frame, scope in scopes if scope is not None for rate in _rates_set(nodes_in(scope)))
        found = (_made_of_tensors(frame, value) for frame, value in rates)
        return next((origin for origin in found if origin is not None), None) or _made_in_ended_function(float(rate))
    return None


def _made_in_ended_function(rate: float) -> Origin | None:
    made = only_maker_of(_is_rate, of_nothing=math.isnan(rate)) if _is_of_a_tensor() else None
    if made is None:
        return None
    return Origin(
        module=None, op=made[0], phase="optimizer", dtype="float64", values=f"1 {rate:g}", tensor="the learning rate",
        line=made[1],
    )  # fmt: skip


def _is_of_a_tensor() -> bool:
    """All that the program assigns to learning rates is `float(...)` or `....item()`."""
    values = [value for _, _, tree in user_trees() for value in _rates_set(ast.walk(tree))]
    return bool(values) and all(map(_is_number_in, values))


def _is_number_in(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Name(id="float"), args=[_]) | ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return True
        case _:
            return False


def _made_of_tensors(frame: FrameType, value: ast.expr) -> Origin | None:
    held = variables_of(frame)
    bad = next((t for name in names_in([value]) if (t := _bad(held.get(name))) is not None), None)
    found = None if bad is None else made_in(frame, Statement.of(value, _RATE), bad)
    return None if found is None else replace(found, module=None, phase="optimizer")


_bad = partial(bad_tensor_in, minus=True)


def _rates_set(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What `group["lr"] = ...` assigns."""
    for node in nodes:
        if isinstance(node, ast.Assign) and any(map(_is_rate, node.targets)):
            yield node.value


def _is_rate(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == _RATE

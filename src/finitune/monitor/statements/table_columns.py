"""A column of a table of pandas that is bad where a statement takes it: the statement that wrote it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.locate import leaf_origin
from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.statements.bad_value_operators import spelled_in
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.source_line import described
from finitune.monitor.user_code.source_tree import Statement


def column_written(
    frame: FrameType | EndedFrame, statements: Sequence[Statement], at: int, values: Mapping[str, Any]
) -> Origin | None:
    """Where the bad column was written that the statement `at` takes of a table; None where it takes none, or none of
    the statements before has written it by its name.
    """
    for table, column in _taken(statements[at].value):
        held = _numbers(values.get(table), column)
        made = next((one for one in reversed(statements[:at]) if _writes(one, table, column)), None)
        if held is not None and made is not None and not is_finite(held):
            whole = leaf_origin("input", f"{table}[{column!r}]", held, places(held))
            line = described(frame.f_code.co_filename, made.line, frame.f_code.co_name)
            return replace(whole, op=spelled_in(made.value) or whole.op, peak=None, line=line)
    return None


def _taken(value: ast.expr) -> Iterator[tuple[str, str]]:
    """Names of variables, and of what may be columns of theirs: `df.price`, `df["price"]`."""
    for node in ast.walk(value):
        match node:
            case ast.Attribute(value=ast.Name(id=table), attr=column):
                yield table, column
            case ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(column))):
                yield table, column
            case _:
                pass


def _numbers(table: Any, column: str) -> Tensor | None:
    """A copy of a column of floating-point numbers."""
    pandas = sys.modules.get("pandas")
    if pandas is None or type(table) is not pandas.DataFrame or column not in table.columns:
        return None
    found = table[column]
    plain = type(found) is pandas.Series and getattr(found.dtype, "kind", "") == "f"
    return torch.from_numpy(found.to_numpy(copy=True)) if plain else None


def _writes(one: Statement, table: str, column: str) -> bool:
    """All of the column, or, as `df.loc[rows, column] = value` does, what is computed for a part of it."""
    match one.target:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
            return (name, key) == (table, column)
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr="loc"),
            slice=ast.Tuple(elts=[_, ast.Constant(value=key)]),
        ):
            return (name, key) == (table, column) and not isinstance(one.value, ast.Constant)
        case _:
            return False

"""What a statement of the program's own that raised was given, where that is not finite, and what has made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from finitune.monitor.probes.finite import places
from finitune.monitor.statements.bad_statement import made_variable
from finitune.monitor.user_code.bad_tensors import bad_tensor_in
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import is_users
from finitune.monitor.user_code.source_tree import holds_line, names_in, scope_of

MOST_NAMES = 8


def facts_of_raised(trace: Sequence[tuple[FrameType, int]]) -> list[dict[str, Any]]:
    """Of the innermost function of the user's in a traceback (frames with their lines): a variable that the statement
    reads and that holds NaN or +inf, rather one of which the operator that made it is known. Nothing is read of tensors
    on an accelerator.
    """
    found: list[dict[str, Any]] = []
    with suppress(Exception):  # what cannot be looked at hides no other fact of the crash
        users = next(((one, line) for one, line in reversed(trace) if is_users(one.f_code.co_filename)), None)
        found += _bad_variables(_where_it_raised(*users)) if users is not None else ()
    return sorted(found, key=lambda fact: "op" not in fact)[:1]


def _where_it_raised(frame: FrameType, line: int) -> EndedFrame:
    """The frame itself has gone on since, to the end of a `with` or through a `finally`."""
    return EndedFrame(f_code=frame.f_code, f_globals=frame.f_globals, f_locals=locals_of(frame), f_lineno=line)


def _bad_variables(frame: EndedFrame) -> Iterator[dict[str, Any]]:
    for name in sorted(_names_read(frame))[:MOST_NAMES]:
        value = locals_of(frame).get(name)
        held = [one for one in pytree.tree_leaves(value) if isinstance(one, Tensor)]
        away = any(one.device.type != "cpu" for one in held)
        bad = None if away else bad_tensor_in(value, minus=False)
        if bad is None:
            continue
        made = made_variable(frame, name, bad)
        known = {} if made is None or not made.is_operator else {"op": made.op, "line": made.line}
        yield {"variable": name, "holds": places(bad).in_words, **known}


def _names_read(frame: EndedFrame) -> frozenset[str]:
    scope = scope_of(frame.f_code)
    around = [] if scope is None else [
        one for one in ast.walk(scope) if isinstance(one, ast.stmt) and holds_line(one, frame.f_lineno)
    ]  # fmt: skip
    return names_in(around[-1:])  # the innermost comes last

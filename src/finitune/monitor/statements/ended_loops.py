"""A loop within the step that has ended when that is judged, computed once more from its first pass on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import LIFTED, OperatorWatch
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.statements.overwritten import overwritten, seen_by
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.statements.plain_statements import StateSpoilt
from finitune.monitor.user_code.bad_tensors import bad_tensor_in
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.source_tree import Statement, holds_line, loops_at, scope_of
from finitune.monitor.user_code.sums import comes_out_as, is_bad_alike
from finitune.monitor.user_code.torch_arithmetic import NotPlain


def made_in_ended_loop(
    frame: FrameType | EndedFrame, statements: list[Statement], at: int, values: Mapping[str, Any], name: str
) -> Origin | None:
    """The operator that has made a variable bad in one of its passes, whatever statement wrote that last; None where
    the statement stands in no such loop, or where the variable comes out in another way.
    """
    scope = scope_of(frame.f_code)
    around = loops_at(scope, statements[at].line) if scope is not None else []
    loop = next((one for one in around if not holds_line(one, frame.f_lineno)), None)
    if loop is None:
        return None
    watch, there = OperatorWatch.of_arithmetic(), dict[str, Any]()

    def found() -> bool:
        made = watch.found(bad_loss=True) is not None
        if not made and bad_tensor_in(there.get(name), minus=True) is not None:
            raise NotPlain(name)  # no operator has made it bad, and what is computed of it has not either
        return made

    evaluation = Evaluation(found)
    evaluation.placed_by(watch)
    try:
        with without_warnings(), torch.enable_grad():
            there |= {**values, name: None, **dict(_before(loop, statements, values))}
            with watch:
                evaluation.statements([loop], there, frame.f_code)
    except (*NOT_COMPUTED, StateSpoilt):
        return None
    made, seen, again = watch.found(bad_loss=True), values.get(name), there.get(name)
    if made is None or made.op == LIFTED or not (comes_out_as(again, seen) or is_bad_alike(seen, again)):
        return None
    return replace(made, line=made.line or evaluation.line)


def _before(
    loop: ast.For | ast.While, statements: list[Statement], values: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What it reads and writes, as it was before its first pass."""
    within = [n for n, one in enumerate(statements) if holds_line(loop, one.line)]
    first, written = within[0], {name for n in within for name in statements[n].writes}
    read = {name for n in within for name in statements[n].reads}
    for name in sorted(written & read | overwritten(statements, first)):
        if any(name in one.writes for one in statements[:first]):
            yield name, seen_by(statements, first, name, values)

"""An operand of the loss that no variable holds: the expression of the user's code of which it is the value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import LIFTED
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation, maker_of
from finitune.monitor.user_code.bad_tensors import holds_bad_loss
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import described
from finitune.monitor.user_code.source_tree import is_state, names_in, nodes_in, scope_of, statements_in
from finitune.monitor.user_code.sums import comes_out_as


def expression_of(frame: FrameType | EndedFrame, values: Mapping[str, Any], wanted: Tensor) -> ast.expr | None:
    """The first expression in the frame's function that is that tensor with `values` for its variables."""
    scope = scope_of(frame.f_code)
    nodes = (node for node in (nodes_in(scope) if scope is not None else ()) if isinstance(node, ast.expr))
    return next((node for node in nodes if names_in([node]) and _is_value(node, values, wanted)), None)


def made_by_expression(
    frame: FrameType | EndedFrame, spelled: ast.expr | None, values: Mapping[str, Any], operand: Tensor,
    of_models: Mapping[int, Sequence[Any]] | None = None,
) -> Origin | None:  # fmt: skip
    """The operator that makes it bad as the expression is computed; None where that is a variable's name."""
    if spelled is None:
        return None
    found = maker_of(operand, lambda evaluation: evaluation.value(spelled, values), of_models)
    if found is None or found.op == LIFTED:
        return None
    line = found.line or described(frame.f_code.co_filename, spelled.lineno, frame.f_code.co_name)
    return replace(found, module=None, phase="input", line=line)


def made_in_expression(frames: Iterable[FrameType], operand: Tensor) -> Origin | None:
    """The operator that makes the operand bad in an expression of one of these functions, innermost first, which still
    run.
    """
    for frame in frames:
        values = variables_of(frame)
        found = made_by_expression(frame, expression_of(frame, values, operand), values, operand)
        if found is not None:
            return found
    return None


def made_in_statement(
    frames: Iterable[FrameType], operand: Tensor, of_models: Mapping[int, Sequence[Any]]
) -> Origin | None:
    """The operator that makes the operand bad on the way to what one of these functions, innermost first, has computed
    by a call: a bad loss, or what is given to an attribute, as `self.loss = self.criterion(out, y)`. It is computed
    again, with what the models returned.
    """
    for frame in frames:
        values, scope = variables_of(frame), scope_of(frame.f_code)
        for one in statements_in(scope) if scope is not None else ():
            called = any(isinstance(node, ast.Call) for node in ast.walk(one.value))
            kept = _gives_attribute(one.target) or any(holds_bad_loss(values.get(name)) for name in one.writes)
            if one.line <= frame.f_lineno and called and kept:
                found = made_by_expression(frame, one.value, values, operand, of_models)
                if found is not None:
                    return found
    return None


def _gives_attribute(target: ast.expr | None) -> bool:
    return any(map(is_state, target.elts if isinstance(target, ast.Tuple | ast.List) else [target] if target else []))


def _is_value(node: ast.expr, values: Mapping[str, Any], wanted: Tensor) -> bool:
    try:
        with torch.no_grad():
            return comes_out_as(Evaluation(lambda: False).value(node, values), wanted)
    except NOT_COMPUTED:
        return False

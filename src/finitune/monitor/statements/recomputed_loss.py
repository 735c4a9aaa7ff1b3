"""A loss computed once more from the statements of the user's code, where no replay has shown what makes it bad, or
what makes its gradients bad: operator by operator.

The variables in the running frames still hold what the statements saw. What cannot be computed again is taken as it is,
as are the outputs of a model that is more than plain arithmetic. Of the user's, autograd functions alone are called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.graph_nodes import nodes_behind
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.probes.surroundings import Randomness
from finitune.monitor.statements.bad_statement import Statement, bad_operand_in, executed
from finitune.monitor.statements.earlier_draws import go_back
from finitune.monitor.statements.new_tensors import MadeHere
from finitune.monitor.statements.operator_lines import roots_of
from finitune.monitor.statements.overwritten import written_after
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.user_code.arithmetic import assign
from finitune.monitor.user_code.bad_tensors import as_leaf, bad_tensor_in, has_graph
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import locals_of, variables_of
from finitune.monitor.user_code.source_line import described, user_frames
from finitune.monitor.user_code.source_tree import names_in
from finitune.monitor.user_code.sums import comes_out_as
from finitune.monitor.user_code.torch_arithmetic import NotPlain

_CARRY = tuple(f"aten.{name}" for name in ("neg", "abs", "add", "sub", "rsub", "sum", "mean"))
_NO_RESULTS: Mapping[int, Sequence[Any]] = MappingProxyType({})
_LARGE = 1e30
"""Of smaller numbers these make nothing that is not finite."""


def bad_backward(
    losses: Sequence[float], ended: Sequence[EndedFrame] = (), began: Randomness | None = None,
    of_models: Mapping[int, Sequence[Any]] = _NO_RESULTS,
) -> Origin | None:  # fmt: skip
    """The first operator that makes something bad, in the backward of one of these finite losses or on the way to it;
    None where neither the innermost running frame that holds one shows it, nor a function that has `ended` and
    returned one. Of these what they held is known, and what models have returned to them, call by call, by the identity
    of each. `began`: the random numbers as the step before has left them.
    """
    for frame in user_frames():
        names = [name for name, value in locals_of(frame).items() if _is_one_of(value, losses)]
        if names:
            found = (
                _in_backward(partial(_variable, frame, name, began), ended, draws=began is not None) for name in names
            )
            return next((origin for origin in found if origin is not None), None)
        for root in (each for each in roots_of(frame) if not isinstance(each, ast.Name)):
            found = _in_backward(partial(_expression, frame, root, losses, began), ended, draws=began is not None)
            if found is not None:
                return found
    leaves = {identity: [pytree.tree_map(as_leaf, each) for each in those] for identity, those in of_models.items()}
    found = (_in_backward(partial(_returned, one, losses), ended, of_models=leaves) for one in ended)
    return next((origin for origin in found if origin is not None), None)


def bad_forward(
    losses: Sequence[float], ended: Sequence[EndedFrame], of_models: Mapping[int, Sequence[Any]] = _NO_RESULTS
) -> Origin | None:
    """The first operator that makes something bad on the way to one of these losses, which is not finite, in a function
    that has `ended` and returned it; None where none shows it. Where that only carries on an infinity, what made that
    before the model was called.
    """
    for one in ended:
        found = _in_forward(partial(_returned, one, losses), ended, of_models)
        if found is not None:
            carries = found.op in _CARRY and found.peak is not None and found.peak < _LARGE
            return (_made_before_call(one) if carries else None) or found
    return None


def _made_before_call(one: EndedFrame) -> Origin | None:
    held = (bad_tensor_in(value, minus=True) for value in one.f_locals.values())
    made = (bad_operand_in(one, bad) for bad in held if bad is not None)
    return next((origin for origin in made if origin is not None and origin.is_operator), None)


def _is_one_of(value: Any, losses: Sequence[float]) -> bool:
    if not isinstance(value, Tensor) or not value.requires_grad or value.numel() != 1:
        return False
    number = float(value.detach())
    return number in losses or (isnan(number) and any(map(isnan, losses)))


def _variable(frame: FrameType, name: str, began: Randomness | None, evaluation: Evaluation) -> Any:
    again = _Again(frame=frame, statements=executed(frame), evaluation=evaluation, began=began)
    return again.variable(name, len(again.statements))


def _expression(
    frame: FrameType, root: ast.expr, losses: Sequence[float], began: Randomness | None, evaluation: Evaluation
) -> Any:
    """Of `(loss + penalty).backward()` the sum."""
    again = _Again(frame=frame, statements=executed(frame), evaluation=evaluation, began=began)
    given = {name: again.variable(name, len(again.statements)) for name in names_in([root])}
    loss = evaluation.value(root, {**again.values, **given})
    with _disable_current_modes():
        if not _is_one_of(loss, losses):
            raise NotPlain(ast.unparse(root))
    return loss


def _returned(one: EndedFrame, losses: Sequence[float], evaluation: Evaluation) -> Any:
    """What was computed before the function called its model ends the graph: its own was used up."""
    held = {name: pytree.tree_map(as_leaf, value) for name, value in one.f_locals.items()}
    returned = pytree.tree_leaves(evaluation.returned(replace(one, f_locals=held)))
    with _disable_current_modes():
        loss = next((value for value in returned if _is_one_of(value, losses)), None)
    if loss is None:
        raise NotPlain(one.f_code.co_name)
    return loss


def _in_forward(
    loss_of: Callable[[Evaluation], Any], ended: Sequence[EndedFrame], of_models: Mapping[int, Sequence[Any]]
) -> Origin | None:
    evaluation, watch = _watched(ended, of_models)
    try:
        with without_warnings(), torch.enable_grad(), watch:
            loss_of(evaluation)
    except NOT_COMPUTED:
        return None
    return watch.found(bad_loss=True)


def _watched(
    ended: Sequence[EndedFrame], of_models: Mapping[int, Sequence[Any]], *, draws: bool = False
) -> tuple[Evaluation, OperatorWatch]:
    evaluation = Evaluation(lambda: False, ended, draws=draws, of_models=of_models)
    watch = OperatorWatch.of_arithmetic()
    evaluation.placed_by(watch)
    return evaluation, watch


def _in_backward(
    loss_of: Callable[[Evaluation], Any], ended: Sequence[EndedFrame], *, draws: bool = False,
    of_models: Mapping[int, Sequence[Any]] = _NO_RESULTS,
) -> Origin | None:  # fmt: skip
    evaluation, watch = _watched(ended, of_models, draws=draws)
    try:
        with without_warnings(), torch.enable_grad(), watch:
            loss = loss_of(evaluation)
            inputs = _inputs_of(loss)
            with MadeHere():
                gradients = torch.autograd.grad(loss, inputs, allow_unused=True) if inputs else ()
    except NOT_COMPUTED:
        return None
    found = watch.found()
    return None if found is None or are_finite([g for g in gradients if g is not None]) else found


def _inputs_of(loss: Tensor) -> list[Tensor]:
    """The leaves of its graph, without those that have hooks of the user's."""
    variables = (getattr(node, "variable", None) for node in nodes_behind([loss]))
    return [leaf for leaf in variables if isinstance(leaf, Tensor) and not leaf._backward_hooks]


@dataclass(slots=True, kw_only=True)
class _Again:
    """The variables of a frame that have a graph, computed again."""

    frame: FrameType
    statements: list[Statement]
    evaluation: Evaluation
    began: Randomness | None
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    values: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.values = variables_of(self.frame)

    def variable(self, name: str, at: int) -> Any:
        """As statement number `at` saw it, with a graph of its own. Raises NotPlain where it was overwritten since."""
        value = self.values.get(name)
        if name in self.known or not has_graph(value):
            return self.known.get(name, value)
        if name in written_after(self.statements, at):
            raise NotPlain(name)
        before = [n for n in range(at) if name in self.statements[n].writes]
        if before:
            self._compute(before[-1])
        return self.known.setdefault(name, pytree.tree_map(as_leaf, value))

    def _compute(self, at: int) -> None:
        """What this statement writes, where it comes out as it was, bit for bit."""
        one = self.statements[at]
        if one.target is None or one.reads & one.writes:
            return
        written: dict[str, Any] = {}
        try:
            given = {**self.values, **{name: self.variable(name, at) for name in one.reads}}
            if self.began is not None:
                go_back(self.began, self.frame, self.statements[:at])
            code = self.frame.f_code
            self.evaluation.now = described(code.co_filename, one.line, code.co_name)
            assign(one.target, self.evaluation.value(one.value, given), written)
        except NOT_COMPUTED:
            return
        with _disable_current_modes():
            self.known |= {name: value for name, value in written.items() if comes_out_as(value, self.values.get(name))}

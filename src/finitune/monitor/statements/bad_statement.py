"""The user's own statement that made a loss bad, read off the variables in the frames that run when the step is judged.

What a loop computes without a graph (normalised targets, advantages, weights of samples), or with a function that
cannot be run again, its variables still hold. From the bad loss back: which of what it was computed of is not finite,
and so on, up to a statement all of whose operands are finite. Nothing of the user's is called; plain arithmetic on
tensors is computed again, to name its operator.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.locate import leaf_origin
from finitune.monitor.origin.operator_watch import LIFTED, OperatorWatch
from finitune.monitor.probes.finite import places
from finitune.monitor.probes.model_calls import is_observed
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.probes.surroundings import Randomness, randomness_kept
from finitune.monitor.statements.acting_calls import made_by_acting_call
from finitune.monitor.statements.attribute_writers import made_by_writers
from finitune.monitor.statements.bad_value_operators import only_maker_in_loop, only_maker_within, spelled_in
from finitune.monitor.statements.branches import without_untaken
from finitune.monitor.statements.earlier_draws import go_back
from finitune.monitor.statements.ended_loops import made_in_ended_loop
from finitune.monitor.statements.known_results import result_of
from finitune.monitor.statements.overwritten import overwritten, seen_by, written_after
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation, maker_of
from finitune.monitor.statements.plain_statements import StateSpoilt
from finitune.monitor.statements.running_transforms import calls_of_transforms, made_in_transform
from finitune.monitor.statements.spelled_operands import expression_of, made_by_expression
from finitune.monitor.statements.table_columns import column_written
from finitune.monitor.user_code.arithmetic import assign
from finitune.monitor.user_code.bad_tensors import bad_tensor_in, has_graph, holds_any, holds_bad_loss
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import locals_of, variables_of
from finitune.monitor.user_code.generators import YIELDED, only_takes, waiting, yields
from finitune.monitor.user_code.model_outputs import is_of_model
from finitune.monitor.user_code.source_line import described, user_frames
from finitune.monitor.user_code.source_tree import (
    Statement,
    holds_line,
    loops_at,
    names_in,
    nodes_in,
    scope_of,
    statements_in,
)
from finitune.monitor.user_code.sums import comes_out_as, is_bad_alike
from finitune.monitor.user_code.variables import models_called, value_of

HELD = "what is held"
"""Its name where no variable is meant."""
BadIn = Callable[[Any], Tensor | None]


def bad_statement(
    *, of_input: bool = False, began: Randomness | None = None, given: Iterable[Tensor] = (), derived: bool = False,
) -> Origin | None:  # fmt: skip
    """The statement, in the innermost of the running frames that holds a bad loss, or in one that has handed to it what
    made it bad; None where none can be found. With `of_input`, something that is known to be bad is put into the loss:
    -inf alone is no mask. `began`: the random numbers as the step before has left them. Of a loss that is not bad: what
    was `given` to it. With `derived` what torch.func has made of a loss is looked at, and no loss.
    """
    known = list(given)
    look = partial(_in_frame, given=known, of_input=of_input, began=began, derived=derived)
    found = map(look, user_frames())
    return next((origin for origin in found if origin is not None), None) or made_in_transform()


def bad_operand_in(one: EndedFrame, operand: Tensor) -> Origin | None:
    """The statement of a function that has ended which made an operand of its loss bad: that operand comes out again,
    bit for bit, when what follows the call of the model is computed from what is known; or, where an object has since
    overwritten what it was computed with, a variable is bad in just the same elements. None where neither does. A -inf
    that no operator made is a mask, where the operand holds NaN or +inf.
    """
    scope = scope_of(one.f_code)
    statements = sorted(statements_in(scope), key=lambda each: each.line) if scope is not None else []
    values = variables_of(one)
    with randomness_kept(), torch.no_grad():
        if one.randomness is not None:
            one.randomness.restore()
        for later in (each for each in statements if each.line >= one.f_lineno):
            written: dict[str, Any] = dict.fromkeys(later.writes)
            with suppress(*NOT_COMPUTED):
                if later.target is not None:
                    evaluation = Evaluation(lambda: False, draws=one.randomness is not None)
                    assign(later.target, evaluation.value(later.expression, values), written)
            values |= written
    spelled = expression_of(one, values, operand)
    made = _made_operand(one, statements, values, operand, spelled, partial(bad_tensor_in, minus=True))
    if made is not None and made.is_operator:
        return made
    again = _made_operand(one, statements, values, operand, spelled, partial(bad_tensor_in, minus=False))
    if again is not None and again.is_operator:
        return again
    return made_in_call(one, operand) or made_by_expression(one, spelled, values, operand) or made


def made_in_call(
    one: EndedFrame, operand: Tensor, of_models: Mapping[int, Sequence[Any]] | None = None
) -> Origin | None:
    """The operator that makes the operand bad in this function or one that it calls, where it comes out again there;
    `of_models` is what its models return.
    """
    found = maker_of(operand, lambda evaluation: evaluation.returned(one), of_models)
    return None if found is None else replace(found, module=None, phase="input")


def _made_operand(
    one: EndedFrame, statements: list[Statement], values: Mapping[str, Any], operand: Tensor, spelled: ast.expr | None,
    bad_in: BadIn,
) -> Origin | None:  # fmt: skip
    if spelled is not None:
        last, bad = spelled.lineno, [name for name in names_in([spelled]) if bad_in(values.get(name)) is not None]
    else:
        last, bad = inf, [name for name, value in values.items() if is_bad_alike(value, operand)]
    wrote = [n for n, each in enumerate(statements) if each.writes & set(bad) and each.line <= last]
    at = _first_bad(statements, wrote[-1], values, bad_in) if wrote else None
    return None if at is None else _origin(one, statements, at, values, bad_in)


def line_of_call() -> str | None:
    """The line of the innermost running frame that calls an observed model; None where several do, or none."""
    for frame in user_frames():
        scope, names = scope_of(frame.f_code), variables_of(frame)
        nodes = [] if scope is None else nodes_in(scope)
        called = [call for call, m in models_called(nodes, names) if is_observed(m) or is_observed(unwrapped(m))]
        if called:
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            return described(file, called[0].lineno, function) if len(called) == 1 else None
    return None


def _in_frame(
    frame: FrameType, *, given: list[Tensor], of_input: bool, began: Randomness | None, derived: bool
) -> Origin | None:
    """`given` are the bad tensors that frames within this one were given; those that this one was given are added."""
    bad_in = partial(bad_tensor_in, minus=of_input)
    values, own = variables_of(frame), locals_of(frame)
    losses = {name for name, value in own.items() if not derived and holds_bad_loss(value)}
    losses = losses or {name for name, value in own.items() if holds_any(value, given)}
    statements = executed(frame)
    losses = losses or _bad_of_transforms(statements, values, bad_in)
    if not losses:
        return None
    # The last one: another loss of the pass before may be bad too, with an optimizer of its own.
    written = [n for n, one in enumerate(statements) if one.writes & losses - written_after(statements, n)]
    if not written:
        return None
    at = _first_bad(statements, written[-1], values, bad_in, given)
    origin = None if at is None else _origin(frame, statements, at, values, bad_in, began)
    if of_input and origin is not None and origin.is_statement and has_graph(values.get(origin.tensor or "")):
        return None  # what is made of the input: less than is known
    return origin


def _bad_of_transforms(statements: list[Statement], values: Mapping[str, Any], bad_in: BadIn) -> set[str]:
    """The variables with what torch.func has made of a loss: numbers without a graph."""
    written = {name for one in statements if _transforms(one, values) for name in one.writes}
    return {name for name in written if bad_in(values.get(name)) is not None}


def _transforms(one: Statement, values: Mapping[str, Any]) -> bool:
    return next(calls_of_transforms(ast.walk(one.value), values), None) is not None


def _first_bad(
    statements: list[Statement], at: int, values: Mapping[str, Any], bad_in: BadIn, given: list[Tensor] | None = None
) -> int | None:
    """From a statement with a bad result back to one without a bad operand; None where a bad operand came from
    elsewhere, which is added to `given` where no statement wrote it.
    """
    while True:
        one = statements[at]
        made_by: list[int] = []
        for name in one.reads - one.writes:
            bad = bad_in(values.get(name))
            if bad is None:
                continue
            before = [n for n in range(at) if name in statements[n].writes]
            if not before or name in written_after(statements, at):
                if given is not None and not before:
                    given.append(bad)
                return None
            made_by.append(before[-1])
        if not made_by:
            return at
        at = min(made_by)


def _origin(
    frame: FrameType | EndedFrame, statements: list[Statement], at: int, values: Mapping[str, Any], bad_in: BadIn,
    began: Randomness | None = None,
) -> Origin | None:  # fmt: skip
    one = statements[at]
    name, bad = next(((n, t) for n in sorted(one.writes) if (t := bad_in(values.get(n))) is not None), (None, None))
    if name is None or bad is None:
        return None
    if (within := _in_generator(one, values, bad, bad_in)) is not None:
        return replace(within, tensor=name) if within.tensor == YIELDED else within
    if (written := column_written(frame, statements, at, values)) is not None:
        return written
    by_a_call = partial(made_by_acting_call, frame, one, values, bad_in)
    operator = _operator(statements, at, values, name, by_a_call)
    if operator is not None and operator.tensor is not None:
        return operator
    if operator is None and began is not None:
        with suppress(*NOT_COMPUTED):
            go_back(began, frame, statements[:at])
            operator = _operator(statements, at, values, name, by_a_call, draws=True)
    operator = operator or by_a_call() or made_in_ended_loop(frame, statements, at, values, name)
    computed = bad.requires_grad or _transforms(one, values) or is_of_model(frame, statements, at, values)
    phase = "forward" if computed else "input"
    overwrites = bool(one.reads & one.writes)
    spelled = spelled_in(one.value) if not overwrites else None
    at_line = described(frame.f_code.co_filename, one.line, frame.f_code.co_name)
    whole = leaf_origin(phase, name, bad, places(bad))
    if operator is None and (held := _held_bad(one.value, values, bad_in)) is not None:
        return made_by_writers(held) or replace(whole, op=phase, peak=None, line=at_line)
    if operator is None:
        made_here = not overwrites or bool(torch.isinf(bad).any())  # a NaN may come from what was overwritten
        within = (
            only_maker_within(one.value, values) if made_here else only_maker_in_loop(frame, statements, name, values)
        )
        op, line = within or (spelled or phase, at_line)
        return replace(whole, op=op, peak=None, line=line)
    rows, shape = operator.rows or (whole.rows if operator.shape == whole.shape else None), operator.shape
    if shape is not None and whole.shape is not None and len(whole.shape) > 1 and shape == whole.shape[1:]:
        rows, shape = whole.rows, whole.shape  # it is applied to one sample after the other
    line = operator.line or at_line
    return replace(operator, phase=phase, tensor=name, rows=rows, shape=shape, line=line)


def _held_bad(value: ast.expr, values: Mapping[str, Any], bad_in: BadIn) -> Origin | None:
    """What an attribute in the expression holds that is bad already, which no statement of a frame wrote."""
    for node in ast.walk(value):
        held = value_of(node, values) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None
        if isinstance(held, Tensor | dict | list | tuple) and (bad := bad_in(held)) is not None:
            return leaf_origin("input", ast.unparse(node), bad, places(bad))
    return None


def made_in(
    frame: FrameType | EndedFrame, taken: Statement, value: Tensor, bad_in: BadIn | None = None
) -> Origin | None:
    """The statement of a frame that has made a bad value, which `taken` writes there; None where it may have been bad
    already in what that statement has overwritten.
    """
    bad_in = bad_in or partial(bad_tensor_in, minus=True)
    statements = [*executed(frame), taken]
    values = {**variables_of(frame), **dict.fromkeys(taken.writes, value)}
    at = _first_bad(statements, len(statements) - 1, values, bad_in)
    origin = None if at is None else _origin(frame, statements, at, values, bad_in)
    if at is None or origin is None or (not origin.is_operator and statements[at].reads & statements[at].writes):
        return None
    return origin


def _in_generator(taken: Statement, values: Mapping[str, Any], bad: Tensor, bad_in: BadIn) -> Origin | None:
    """Of a bad value that the statement takes from a generator of the user's: the statement in that which made it, or
    the one that made what the generator was given.
    """
    frame = waiting(taken.value, values)
    statement = None if frame is None else yields(frame)
    if frame is None or statement is None:
        return None
    held = [value for value in locals_of(frame).values() if bad_in(value) is not None]
    made = made_in(frame, statement, bad, bad_in) or made_in_frames(held)
    # Of what is computed of it, as `losses = [loss_of(*next(batches))]`, it may be the operator, and is no statement.
    return made if made is None or made.is_operator or only_takes(taken.value, values) else None


def made_variable(frame: FrameType | EndedFrame, name: str, value: Tensor) -> Origin | None:
    """The statement of a frame that has made the bad value which a variable of that name holds; see `made_in`."""
    node = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), ast.Constant(0, lineno=1, col_offset=0))
    return made_in(frame, Statement.of(node, HELD), value)


def made_in_frames(held: Sequence[Any]) -> Origin | None:
    """The operator that has made one of these bad, where a variable of a running frame holds the same object."""
    for frame in user_frames():
        own = [(name, value) for name, value in locals_of(frame).items() if any(value is each for each in held)]
        for name, value in own:
            found = made_variable(frame, name, value)
            if found is not None and found.is_operator:
                return found
    return None


def _operator(
    statements: list[Statement], at: int, values: Mapping[str, Any], name: str, by_a_call: Callable[[], Origin | None],
    *, draws: bool = False,
) -> Origin | None:  # fmt: skip
    """The operator that makes what the statement writes bad, and its line where that lies in a function; None where it
    cannot be computed again without calling what is the user's, or comes out in another way.
    """
    watch = OperatorWatch.of_arithmetic()
    lost, seen = overwritten(statements, at), values.get(name)
    expression = statements[at].expression
    if (appended := _appended(statements[at].value)) is not None and type(seen) is list and seen:
        expression, seen = appended, seen[-1]
    result = result_of(statements[at], values, written_after(statements, at))
    evaluation = Evaluation(lambda: watch.found(bad_loss=True) is not None, draws=draws, result=(expression, result))
    evaluation.placed_by(watch)
    try:
        with without_warnings(), torch.enable_grad():
            given = {**values, **{each: seen_by(statements, at, each, values) for each in lost}}
            if any(bad_tensor_in(given[each], minus=True) is not None for each in lost):
                return None  # it was bad before
            with watch:
                value = evaluation.value(expression, given)
    except StateSpoilt:
        value = values.get(name)
    except NOT_COMPUTED:
        if lost or draws or not evaluation.gave_bad:
            return None
        value = None
    made = evaluation.bad_number or watch.found(bad_loss=True) or _spoilt_state(evaluation)
    if made is not None and made.op == LIFTED:
        return None
    if evaluation.of_number and (known := by_a_call()) is not None:
        return known
    again = _given_to(statements[at], name, value)
    if made is None or ((lost or draws) and not comes_out_as(again, seen) and not is_bad_alike(seen, again)):
        return None  # in the last pass of a loop an earlier one may have gone into it too
    return replace(made, line=made.line or evaluation.line)


def _appended(value: ast.expr) -> ast.expr | None:
    """What `losses.append(x)` appends: the last element, as the statement has left it."""
    match value:
        case ast.Call(func=ast.Attribute(attr="append"), args=[one], keywords=[]):
            return one
        case _:
            return None


def _given_to(one: Statement, name: str, value: Any) -> Any:
    """What of the value the statement gives to that variable."""
    written: dict[str, Any] = {}
    with suppress(*NOT_COMPUTED):
        if one.target is not None:
            assign(one.target, value, written)
    return written.get(name, value)


def _spoilt_state(evaluation: Evaluation) -> Origin | None:
    """What an object keeps: in the steps before, whose losses were finite, it was finite too. A -inf is a bound."""
    state = evaluation.spoilt
    found = None if state is None else places(state.value)
    if state is None or found is None or not (found.nan or found.inf):
        return None
    origin = leaf_origin("forward", state.name, state.value, found)
    return replace(origin, op=f"aten.{state.operator}" if state.operator else "forward", peak=None, line=state.line)


def executed(frame: FrameType | EndedFrame) -> list[Statement]:
    """The assignments of the frame's function in the order in which they ran last, up to the line that runs now."""
    scope = scope_of(frame.f_code)
    now = frame.f_lineno
    loops = loops_at(scope, now) if scope is not None else []

    def when(one: Statement) -> tuple[int, bool, int]:
        """What a loop runs comes after what stands around it; below the line that runs now, in the pass before."""
        return sum(holds_line(loop, one.line) for loop in loops), one.line <= now, one.line

    if scope is None:
        return []
    values = variables_of(frame)
    return without_untaken(scope, sorted(statements_in(scope), key=when), values, now)

"""What the frames of the user's own code tell of an origin that a replay has not found, or only in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

from torch import Tensor, nn

from finitune.finding import Origin
from finitune.monitor.capture.step import Capture
from finitune.monitor.loss_graph.objective import Place, term_at
from finitune.monitor.origin.frame_modules import bad_tensor, modules_of_variables
from finitune.monitor.origin.locate import calls_of
from finitune.monitor.origin.spoilt_buffers import is_in_some_samples
from finitune.monitor.probes.finite import is_finite, is_inexact
from finitune.monitor.replay.call_results import Results
from finitune.monitor.statements.attribute_writers import written_bad
from finitune.monitor.statements.bad_statement import bad_operand_in, bad_statement, line_of_call, made_in_call
from finitune.monitor.statements.constructors import made_by_constructor
from finitune.monitor.statements.given_gradients import bad_gradient
from finitune.monitor.statements.operator_lines import only_place, only_place_of
from finitune.monitor.statements.recomputed_loss import bad_backward, bad_forward
from finitune.monitor.statements.spelled_operands import made_in_expression, made_in_statement
from finitune.monitor.user_code.ended_frames import EndedFrame, ended
from finitune.monitor.user_code.source_line import described, user_frames


def seen(
    own: Origin | None, term: Place | None, known: Iterable[nn.Module], losses: Sequence[float], capture: Capture,
    results: Callable[[], Results], *, bad_loss: bool,
) -> Origin | None:  # fmt: skip
    """The origin as the frames tell it: a module that no optimizer trains and that is bad by itself, or the loop's
    statement; None where they tell no more than is known. `term` is the term of the loss that the origin lies in,
    `known` are the modules that were looked at, `losses` what was handed to the backwards of the `capture`, `results`
    what its calls return when they are made again.
    """
    results = cache(results)  # which runs the model
    # What a call has kept tells more than what is drawn again.
    first = replace(capture, began=None) if calls_of(capture) else capture
    found = _seen(own, term, known, losses, first, results, bad_loss=bad_loss)
    if found is not None and not found.is_statement:
        return found
    if capture.began is not None and first is not capture:
        again = _seen(own, term, known, losses, capture, results, bad_loss=bad_loss)
        found = again if again is not None and again.is_operator else found
    if own is None and (found is None or found.is_statement):
        found = _of_results(losses, capture, results, bad_loss=bad_loss) or found
    return found


def _of_results(
    losses: Sequence[float], capture: Capture, results: Callable[[], Results], *, bad_loss: bool
) -> Origin | None:
    """Of a loss whose graph was not read, in functions that have ended: computed of what their models return."""
    over = list(ended(one for call in calls_of(capture) for one in call.callers))
    with suppress(Exception):  # what the model raises when it is called again
        of_models = results() if over else {}
        if of_models:
            made = bad_forward if bad_loss else bad_backward
            return made(losses, over, of_models=of_models)
    return None


def _seen(
    own: Origin | None, term: Place | None, known: Iterable[nn.Module], losses: Sequence[float], capture: Capture,
    results: Callable[[], Results], *, bad_loss: bool,
) -> Origin | None:  # fmt: skip
    callers = [one for call in calls_of(capture) for one in call.callers]
    if own is not None and (own.module is not None or own.phase not in ("input", "forward", "backward")):
        return None
    if own is None or own.phase == "input" or own.is_statement:
        with suppress(Exception):  # a tensor of a kind that cannot be looked at
            # A buffer that the step has written from a bad sample was bad after it.
            written = own is None or not is_in_some_samples(own)
            found = bad_tensor({id(inner) for module in known for inner in module.modules()}, written=written)
            if found is not None:
                return made_by_constructor(found, modules_of_variables()) or found
    if own is not None and own.line is not None:
        return None
    of_input = own is not None and own.phase == "input"
    spoilt = [] if bad_loss or not of_input else _bad_inputs(capture)
    found = bad_statement(of_input=of_input, began=capture.began, given=spoilt) if bad_loss or spoilt else None
    if own is None:
        given = (micro.given for micro in capture.micro_steps if micro.given is not None)
        over = list(ended(callers))
        if bad_loss:
            made = bad_forward(losses, over) if found is None or found.is_statement else None
            return made or found
        # Of a function that torch.func derives no loss has a graph, and its gradients are variables.
        return (
            bad_gradient(given)
            or bad_backward(losses, over, capture.began)
            or bad_statement(began=capture.began, derived=True)
        )
    if of_input:
        if found is not None and not _takes(found, own) and not _goes_through(found):
            return found
        if " of " not in (own.tensor or ""):
            given = line_of_call() or _line_of(callers)
            return replace(own, line=given) if given else None
        objectives = [micro.objective for micro in capture.micro_steps if micro.objective is not None]
        operand = next((bad[1] for one in objectives if (bad := one.bad_operand()) is not None), None)
        if operand is None:
            return None
        made = (bad_operand_in(one, operand) for one in ended(callers))
        found = next((origin for origin in made if origin is not None), None)
        if found is not None:
            return _with_name_of(own, found)
        return written_bad(operand) or _with_name_of(own, _operand_maker(operand, list(ended(callers)), results))
    if found is not None and not found.is_statement and found.op == own.op and found.phase == own.phase:
        return replace(own, line=found.line, tensor=found.tensor)  # the first in the order in which the program runs
    line = _line(term)
    if line is None and found is not None and found.phase == "forward":
        line = (found.line and only_place_of(own.op, found.line)) or found.line
    elif line is None and own.phase == "backward" and not bad_loss:
        again = bad_backward(losses, list(ended(callers)))
        line = again.line if again is not None and again.op == own.op else None
    return replace(own, line=line) if line else None


def _operand_maker(operand: Tensor, over: Sequence[EndedFrame], results: Callable[[], Results]) -> Origin | None:
    """The operator that makes the operand bad in a function that still runs, or in one that has ended."""
    of_models: Results = {}
    alike = (operand, -operand)  # what is subtracted is known by what it adds
    found = next((made for one in alike if (made := made_in_expression(user_frames(), one))), None)
    if found is None:
        with suppress(Exception):  # what the model raises when it is called again
            of_models = results()
        found = next((made for one in alike if (made := made_in_statement(user_frames(), one, of_models))), None)
    return found or next((made for one in over if (made := made_in_call(one, operand, of_models))), None)


def _with_name_of(own: Origin, found: Origin | None) -> Origin | None:
    """What was found has the name and the samples of the operand where it has none of its own."""
    return None if found is None else replace(found, tensor=found.tensor or own.tensor, rows=found.rows or own.rows)


def _bad_inputs(capture: Capture) -> list[Tensor]:
    given = (tensor for call in calls_of(capture) for tensor, _ in call.versions)
    return [tensor for tensor in given if is_inexact(tensor) and not is_finite(tensor)]


def _line_of(callers: Sequence[EndedFrame]) -> str | None:
    """Where a function that has ended, as a `compute_loss`, called the model."""
    return next((described(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in callers), None)


def _takes(found: Origin, own: Origin) -> bool:
    """The operator that was found is the one that the bad input goes into, not one that spoilt what an object keeps."""
    taking = (own.tensor or "").rpartition(" of ")[2].lower()
    return (found.tensor or "").isidentifier() and taking == found.op.removeprefix("aten.").replace("_", "")


def _goes_through(found: Origin) -> bool:
    """All that is known is the loop that takes batches from elsewhere, in which nothing is computed."""
    return not found.is_operator and (found.line or "").partition(": ")[2].startswith(("for ", "async for "))


def _line(place: Place | None) -> str | None:
    """Where the user's code spells the operator of the term."""
    term = term_at(place)
    return None if term is None else only_place(term.name)

"""What the frames of the user's own code tell of an origin that a replay has not found, or only in part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import nn

from finitune.finding import Origin
from finitune.monitor.replay.frame_modules import bad_tensor
from finitune.monitor.replay.objective import Place, placed
from finitune.monitor.replay.recomputed_loss import bad_backward
from finitune.monitor.replay.spelled import only_place
from finitune.monitor.replay.statements import bad_statement, line_of_call


def seen(
    own: Origin | None, term: Place | None, known: Iterable[nn.Module], losses: Sequence[float], *, bad_loss: bool
) -> Origin | None:
    """The origin as the frames tell it: a module that no optimizer trains and that is bad by itself, or the loop's
    statement; None where they tell no more than is known. `term` is the term of the loss that the origin lies in,
    `known` are the modules that were looked at, `losses` what was handed to the backwards.
    """
    if own is not None and (own.module is not None or own.phase not in ("input", "forward", "backward")):
        return None
    if own is None or own.phase == "input" or own.is_statement:
        with suppress(Exception):  # a tensor of a kind that cannot be looked at
            found = bad_tensor({id(inner) for module in known for inner in module.modules()})
            if found is not None:
                return found
    if own is not None and own.line is not None:
        return None
    of_input = own is not None and own.phase == "input"
    found = bad_statement(of_input=of_input) if bad_loss else None
    if own is None:
        return found if bad_loss else bad_backward(losses)
    if of_input:
        if found is not None and not _takes(found, own):
            return found
        given = None if " of " in (own.tensor or "") else line_of_call()
        return replace(own, line=given) if given else None
    line = _line(term) or (found.line if found is not None and found.phase == "forward" else None)
    return replace(own, line=line) if line else None


def _takes(found: Origin, own: Origin) -> bool:
    """The operator that was found is the one that the bad input goes into."""
    return (own.tensor or "").rpartition(" of ")[2].lower() == found.op.removeprefix("aten.").replace("_", "")


def _line(place: Place | None) -> str | None:
    """Where the user's code spells the operator of the term."""
    term = dict(placed(place[0])).get(place[1]) if place is not None else None
    return None if term is None else only_place(term.name)

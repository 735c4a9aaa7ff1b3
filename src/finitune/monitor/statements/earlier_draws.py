"""Random numbers as a statement of the loop drew them, from the state in which the step before has left them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import torch

from finitune.monitor.probes.surroundings import Randomness
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_tree import Statement, holds_line, loops_at, scope_of
from finitune.monitor.user_code.sums import comes_out_as
from finitune.monitor.user_code.torch_arithmetic import NotPlain


def go_back(to: Randomness, frame: FrameType | EndedFrame, before: Sequence[Statement]) -> None:
    """Restore that state, and draw what the statements `before` drew since. Raises NotPlain where one of them draws
    what it has not drawn then.
    """
    to.restore()
    scope = scope_of(frame.f_code)
    loops = loops_at(scope, frame.f_lineno) if scope is not None else []
    values = variables_of(frame)
    for one in before:
        if loops and not holds_line(loops[-1], one.line):
            continue  # once, before the loop
        state, value = Randomness.now(), None
        with suppress(*NOT_COMPUTED), torch.no_grad():
            value = Evaluation(lambda: False, draws=True).value(one.expression, values)
        if state.torch_has_drawn():
            seen = [values.get(name) for name in one.writes]
            if len(seen) == 1 and comes_out_as(value, seen[0]):
                continue
            if one.line <= frame.f_lineno:
                raise NotPlain("random numbers")
            state.restore()  # of the pass before, and drawn before its last step

"""A bad input that another model has put out in the same step, whose own backward is still to come: a generator's for
its discriminator, a teacher's for its student.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from finitune.finding import Origin
from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.origin.locate import bad_leaf, calls_of, locate_in_calls
from finitune.monitor.replay.rerun import Setting


def made_by_call(known: Origin, setting: Setting, waiting: Sequence[Call]) -> Origin | None:
    """The operator within one of the `waiting` calls that makes what it puts out bad, where an input is `known` to be.
    One extra forward of each.
    """
    if known.phase != "input":
        return None
    own = {id(call) for call in calls_of(setting.capture)}
    for call in (each for each in waiting if id(each) not in own):
        with suppress(Exception):  # a model that cannot be called twice
            if bad_leaf((), [call]) is not None:
                continue  # it passes on what it is given
            alone = Capture(micro_steps=[MicroStep(calls=[call])])
            found = locate_in_calls(replace(setting, model=call.module, capture=alone))
            if found is not None and found.is_operator:
                return found
    return None

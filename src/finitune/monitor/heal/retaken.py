"""The last steps taken again in another way: tried on the side, and done to the run, by all of its ranks alike."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.bounds import Bound
from finitune.monitor.heal.cure import Case, Unable, Undo
from finitune.monitor.heal.past import Past, State
from finitune.monitor.heal.step_again import UNLIKE
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.replay.rerun import Outcome, Setting, rerun

WORSE = 1.05
"""Times the loss of the same batch before these steps: other batches may raise it a little."""
ROOM = 8
"""How often the last steps must fit into the time that is left, for what comes before a lower rate."""


def kept_by(case: Case) -> Past:
    """What is kept of the last steps. Raises Unable."""
    past: Past | None = case.watched.past
    if past is None or not past.steps:
        raise Unable((past and past.why_not) or "no earlier step is kept")
    return past


def mebibytes(past: Past) -> float:
    """Of the copies that are kept."""
    return sum(state.nbytes for one in past.steps if (state := one.before) is not None) / 2**20


def outcome(case: Case, arm: AbstractContextManager[None]) -> Outcome | None:
    """Of the captured step; None where the last steps cannot be taken again so. Raises OverBudget."""
    case.inquiry.limits.check()
    case.runs += 1
    try:
        return rerun(case.inquiry.setting(), arm)
    except (RuntimeError, ValueError):
        return None


def before_steps(case: Case, past: Past) -> Outcome:
    """Of the captured step on the weights of before the last steps. Raises Unable, also where there is no time left
    for other remedies after this one.
    """
    began = time.monotonic()
    before = outcome(case, past.before(case.inquiry.setting()))
    if before is None:
        raise Unable("the last steps cannot be taken again")
    needed = ROOM * (len(past.steps) + 1) * (time.monotonic() - began)
    if needed > case.inquiry.limits.left:
        raise Unable(f"the last steps taken again {ROOM} times need {needed:.0f} s, and fewer are left")
    return before


def is_borne(before: Outcome, after: Outcome | None) -> bool:
    """Whether the captured step is no worse after the steps than before them. A model that gives one answer to
    everything is finite too, and has no gradient.
    """
    if after is None or not after.finite or not before.finite:
        return False
    alive = float(after.norms.double().norm()) >= float(before.norms.double().norm()) / UNLIKE
    return alive and sum(after.losses) <= WORSE * sum(before.losses)


def orders_for(
    past: Past, times: float = 1.0, since: int = 0, *, bound: str = "", skipped: Collection[int] = ()
) -> dict[str, Any]:
    """How every rank takes the last steps again, as JSON."""
    return {
        "times": times, "since": since, "bound": bound, "skipped": sorted(skipped),
        "steps": [one.step for one in past.steps],
    }  # fmt: skip


def take(watched: Watched, orders: Mapping[str, Any]) -> tuple[Past, Bound | None, Undo]:
    """All ranks take the same steps again, each on its own batches, with the gradients averaged as in the run.

    Returns what is kept, the bound as it then is, and what puts weights and state back. Raises Unable on all ranks,
    with nothing changed.
    """
    past: Past = watched.past or Past()
    if watched.model is None:
        raise Unable("the model is not known")
    optimizer: Any = watched.optimizer()
    last = past.steps[-1].capture if past.steps else Capture()
    before = State.of(optimizer)
    try:
        setting = Setting(model=watched.model, optimizer=optimizer, capture=last, group=watched.group, past=past)
        bound = past.take_as_ordered(setting, orders)
        if not all(map(is_finite, watched.parameters())):
            raise ValueError("the weights after these steps are not finite")
    except Exception as error:
        before.restore(optimizer)
        raise Unable(str(error)) from None
    return past, bound, lambda: before.restore(optimizer)


def take_bounded(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same, and every later step is bounded in the same way."""
    past, bound, put_back = take(watched, orders)
    past.bound = bound
    past.steps.clear()

    def undo() -> None:
        put_back()
        past.bound = None

    return undo

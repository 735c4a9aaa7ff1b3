"""A weight that changed by itself: weights and optimizer state are computed again from those kept of an earlier step.

Needs: the last steps and a state before them (see `heal.past`), and updates that, taken again, give finite weights.
Price: the steps that are taken again, and the copies. Undo: weights and state are those of the bad step, bit for bit.
"""

from __future__ import annotations

from contextlib import nullcontext

from finitune.monitor.heal.cure import Case, Cure, Unable, Undo
from finitune.monitor.heal.past import Past, State
from finitune.monitor.probes.finite import is_finite
from finitune.reports.sentences import counted

action = "rolled-back"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past: Past | None = case.watched.past
    tensor = case.inquiry.event.get("changed_in_memory")
    if tensor is None or past is None or not past.steps:
        raise Unable("no weight is seen to have changed by itself")
    past = past.newest()
    steps, first = counted(len(past.steps), "step"), past.steps[0].step
    return Cure(
        text=f"{tensor} had changed by itself; the last {steps} taken again from the weights of step {first - 1}",
        price=f"{steps} computed twice",
        targets=frozenset({f"weights of step {case.reading.step}"}),
        change=lambda setting: past.again(setting, 1.0),
        placebo=lambda _: nullcontext(),
        instead="the weights as they are",
        apply=lambda: _apply(case, past),
    )


def _apply(case: Case, past: Past) -> Undo:
    optimizer = case.watched.optimizer()
    before = State.of(optimizer)
    try:
        past.take_again(case.inquiry.setting(), 1.0)
        if not all(map(is_finite, case.watched.parameters())):
            raise Unable("the weights after these steps are not finite")
    except Exception as error:
        before.restore(optimizer)
        raise Unable(str(error)) from None
    return lambda: before.restore(optimizer)

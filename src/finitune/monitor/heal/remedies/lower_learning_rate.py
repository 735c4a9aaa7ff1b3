"""The last steps are taken again, and the later ones too, with a learning rate that they bear.

Needs: one process, a torch optimizer without a scaler around it, batches that are still what they were, and room for
copies of weights and optimizer state (see `heal.past`). The schedule of the loop, its counters and its data go on as
they are; each step multiplies the rate that the schedule sets. Price: the steps that are taken again, the copies, and
slower learning. Undo: weights, state and rates are those of the bad step, bit for bit.
"""

from __future__ import annotations

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo
from finitune.monitor.heal.past import Past, State
from finitune.monitor.probes.finite import is_finite
from finitune.reports.sentences import counted

action = "rolled-back"
FACTORS = (0.1, 0.01, 0.001)
"""The largest that makes the step finite is taken."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past: Past | None = case.watched.past
    if past is None or not past.steps:
        raise Unable((past and past.why_not) or "no earlier step is kept")
    factor = next((factor for factor in FACTORS if case.finite(_again(past, factor))), None)
    if factor is None:
        raise Unable(f"not finite with the last {counted(len(past.steps), 'step')} at {FACTORS[-1]:g} times their rate")
    steps = counted(len(past.steps), "step")
    copies = sum(state.nbytes for one in past.steps if (state := one.before) is not None)
    return Cure(
        text=f"the last {steps} taken again at {factor:g} times the learning rate, which stays so",
        price=f"{steps} computed twice, {copies / 2**20:.1f} MiB of copies",
        targets=frozenset({f"learning rate times {past.factor * factor:g}"}),
        change=_again(past, factor),
        placebo=_again(past, 1.0),
        instead="the same steps taken again at their own rate",
        apply=lambda: _apply(case, past, factor),
    )


def _again(past: Past, factor: float) -> Change:
    return lambda setting: past.again(setting, factor)


def _apply(case: Case, past: Past, factor: float) -> Undo:
    optimizer = case.watched.optimizer()
    before, own = State.of(optimizer), past.factor
    try:
        past.take_again(case.inquiry.setting(), factor)
        if not all(map(is_finite, case.watched.parameters())):
            raise Unable("the weights after these steps are not finite")
    except Exception as error:
        before.restore(optimizer)
        raise Unable(str(error)) from None
    past.factor = own * factor

    def undo() -> None:
        before.restore(optimizer)
        past.factor = own
        past.steps.clear()

    return undo

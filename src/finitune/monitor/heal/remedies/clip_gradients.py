"""The last steps are taken again, and the later ones too, each tensor's gradient clipped to twice its usual norm.

Needs: a loop that clips nothing by itself, and what `heal.past` needs: one process, a torch optimizer without a scaler
around it, room for copies of weights and optimizer state. Price: the steps that are taken again, the copies, and one
norm per tensor and step from then on, read by the host. Undo: weights, state and gradients' norms are those of the bad
step, bit for bit.
"""

from __future__ import annotations

import math

from finitune.monitor.heal.cure import Case, Cure, Unable, Undo
from finitune.monitor.heal.past import Past, State
from finitune.monitor.heal.tensor_clip import RELATIVE, TensorClip
from finitune.monitor.probes.finite import is_finite
from finitune.reports.sentences import counted

action = "rolled-back"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past: Past | None = case.watched.past
    if past is None or not past.steps:
        raise Unable((past and past.why_not) or "no earlier step is kept")
    if any(one.max_norm is not None and math.isfinite(one.max_norm) for one in past.steps):
        raise Unable("the loop clips its gradients already")
    if past.clip is not None:
        raise Unable("gradients are clipped already")
    steps = counted(len(past.steps), "step")
    copies = sum(state.nbytes for one in past.steps if (state := one.before) is not None)
    return Cure(
        text=f"the last {steps} taken again, the gradient of each tensor clipped to {RELATIVE:g} times its usual norm",
        price=f"{steps} computed twice, {copies / 2**20:.1f} MiB of copies, a norm per tensor and step",
        targets=frozenset({"gradients of every tensor"}),
        change=past.clipped,
        placebo=lambda setting: past.again(setting, 1.0),
        instead="the same steps taken again unclipped",
        apply=lambda: _apply(case, past),
    )


def _apply(case: Case, past: Past) -> Undo:
    optimizer = case.watched.optimizer()
    before, clip = State.of(optimizer), TensorClip()
    try:
        past.take_again(case.inquiry.setting(), 1.0, clip=clip)
        if not all(map(is_finite, case.watched.parameters())):
            raise Unable("the weights after these steps are not finite")
    except Exception as error:
        before.restore(optimizer)
        raise Unable(str(error)) from None
    past.clip = clip

    def undo() -> None:
        before.restore(optimizer)
        past.clip = None

    return undo

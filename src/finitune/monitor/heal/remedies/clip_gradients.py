"""The last steps are taken again, and the later ones too, each tensor's gradient clipped to twice its usual norm.

Needs: a loop that clips nothing by itself, and what `heal.past` needs: a torch optimizer,
room for copies of weights and optimizer state; of several ranks each holds the whole model. Price: the steps that are
taken again, the copies, and one norm per tensor and step from then on, read by the host. Undo: weights, state and
gradients' norms are those of the bad step, bit for bit.
"""

from __future__ import annotations

import math
from functools import partial

from finitune.monitor.heal.bounds import CLIP
from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.retaken import kept_by, mebibytes, orders_for, take_bounded
from finitune.monitor.heal.tensor_clip import RELATIVE
from finitune.monitor.probes.deepspeed import is_partitioned
from finitune.reports.sentences import counted

action = "rolled-back"
repeat = take_bounded


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past = kept_by(case)
    if any(one.max_norm is not None and math.isfinite(one.max_norm) for one in past.steps):
        raise Unable("the loop clips its gradients already")
    if past.bound is not None:
        raise Unable("steps are bounded already")
    if is_partitioned(case.watched.optimizer()):
        raise Unable("no rank has the norm of a whole tensor, for each holds a part of the gradients")
    steps, orders = counted(len(past.steps), "step"), orders_for(past, bound=CLIP)
    return Cure(
        text=f"the last {steps} taken again, the gradient of each tensor clipped to {RELATIVE:g} times its usual norm",
        price=f"{steps} computed twice, {mebibytes(past):.1f} MiB of copies, a norm per tensor and step",
        targets=frozenset({"gradients of every tensor"}),
        change=partial(past.again, times=1.0, bound=CLIP),
        placebo=partial(past.again, times=1.0),
        instead="the same steps taken again unclipped",
        apply=lambda: repeat(case.watched, orders),
        orders=orders,
    )

"""The last steps are taken again, and the later ones too, with a learning rate that they bear.

Needs: a torch optimizer, batches that are still what they were, and room for copies of
weights and optimizer state (see `heal.past`). Of several ranks each must hold the whole model, as in
DistributedDataParallel and DeepSpeed's ZeRO 1 and 2; one of them tries it on its own batches, and all take the steps
together. The schedule of the loop, its counters and its data go on as they are; each step multiplies the rate that
the schedule sets, and where a single process bears it the factor comes back to 1 (`heal.rewarm`). Price: the steps
that are taken again, the copies, and slower learning. Undo: weights, state and rates are those of the bad step, bit
for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from finitune.monitor.earlier_batches import RISE
from finitune.monitor.heal.cure import Case, Cure, Unable, Undo
from finitune.monitor.heal.past import Past
from finitune.monitor.heal.retaken import is_borne, kept_by, mebibytes, orders_for, outcome, take
from finitune.monitor.heal.rewarm import losses_of_all
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.limits import OverBudget
from finitune.monitor.replay.rerun import Outcome
from finitune.reports.sentences import counted

action = "rolled-back"
FACTORS = (0.1, 0.01, 0.001)
"""The largest that the steps bear is taken, or a tenth of it where that learns more; those from the climb on alone,
where that is enough.
"""
AGAIN = 0.5
"""Of a rate to which the run had come back and diverged again, the most that is tried afterwards."""
JUMPED = 2.0
"""Where the rate is so many times that of the step before, the run is first given back the rate that it bore."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past = kept_by(case)
    before = _outcome(case, past, 0.0)  # no rate at all: the weights of before
    if before is None:
        raise Unable("the last steps cannot be taken again")
    first, steps = past.steps[0].step, counted(len(past.steps), "step")
    tries = [(since, factor) for since in sorted({_climb(case, past), first}, reverse=True) for factor in FACTORS]
    tries = [*_jumps_back(past), *tries]
    found = next((one for one in tries if is_borne(before, _outcome(case, past, one[1], one[0]))), None)
    if found is None:
        raise Unable(f"the last {steps} are not borne at {FACTORS[-1]:g} times their rate")
    since, factor = found = _learns_most(case, past, before, found)
    orders = {**orders_for(past, factor, since), "jumped": found in _jumps_back(past)}
    return Cure(
        text=f"the last {steps} taken again, from step {since} on at {factor:g} times the learning rate",
        price=f"{steps} computed twice, {mebibytes(past):.1f} MiB of copies",
        targets=frozenset({f"learning rate times {past.factor * factor:g}"}),
        change=partial(past.again, times=factor, since=since),
        placebo=partial(past.again, times=1.0),
        instead="the same steps taken again at their own rate",
        apply=lambda: repeat(case.watched, orders),
        orders=orders,
        patch={"learning_rate": max(past.steps[-1].rates) * factor},
    )


def _climb(case: Case, past: Past) -> int:
    """The step whose update the loss climbed after; the oldest where it did not at once.

    A batch that is harder than others may be taken for a climb: then a few more steps are taken at the lower rate.
    """
    loss = case.inquiry.signals["loss"]
    known = dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))
    lowest = math.inf
    for one in past.steps:
        lowest = min(lowest, known.get(one.step, math.inf))
        if known.get(one.step + 1, lowest) > RISE * lowest:
            return one.step
    return past.steps[0].step


def _learns_most(case: Case, past: Past, before: Outcome, found: tuple[int, float]) -> tuple[int, float]:
    """Of the rate that was found and the one a tenth of it, which may be borne better, the one that leaves the lower
    loss over the batches of these steps. A rate at the edge is borne for a while, and learns nothing.
    """
    since, factor = found
    lower = factor * FACTORS[0]
    if factor not in FACTORS[:-1] or past.group.size > 1:
        return found
    setting, losses = case.inquiry.setting(), dict[float, float]()
    try:
        if not is_borne(before, _outcome(case, past, lower, since)):
            return found
        for each in (factor, lower):
            with past.again(setting, each, since):
                losses[each] = losses_of_all(setting, past)
    except (RuntimeError, ValueError, OverBudget):  # what was found is proved without it
        return found
    return (since, lower) if losses[lower] < losses[factor] else found


def _jumps_back(past: Past) -> list[tuple[int, float]]:
    """Steps at which the schedule jumped, the newest first, each with the factor that gives the rate of before."""
    rates = [(one.step, max(one.rates)) for one in past.steps]
    pairs = [(step, old / new) for (_, old), (step, new) in pairwise(rates) if new > JUMPED * old > 0]
    return pairs[::-1]


def _outcome(case: Case, past: Past, factor: float, since: int = 0) -> Outcome | None:
    return outcome(case, past.again(case.inquiry.setting(), factor, since))


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """All ranks take the same steps again, and the later ones at the lower rate."""
    past, _, put_back = take(watched, orders)
    own, most = past.factor, past.most
    past.factor = own * orders["times"]
    past.most = past.factor if orders["jumped"] else most if own == 1.0 else max(own * AGAIN, past.factor)
    past.steps.clear()

    def undo() -> None:
        put_back()
        past.factor, past.most = own, most

    return undo

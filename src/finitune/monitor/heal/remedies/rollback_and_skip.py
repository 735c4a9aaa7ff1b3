"""The run goes back to its newest good state, and takes the steps since again without the batches that did the damage.

They are found by bisecting: the shortest beginning of the last steps after which an earlier batch has lost what was
learned of it ends in a guilty one; without it the search goes on, until the rest does no damage. Needs: what
`heal.past` needs; of several ranks each holds the whole model, and all leave out the same steps. Price: the steps that
are taken again, the copies, and the batches that are not learned from. Undo: weights and state are those of the bad
step, bit for bit. The schedule, the counters and the data of the loop go on as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from finitune.monitor.experiments import DIVERGED
from finitune.monitor.heal.cure import Case, Cure, Unable, Undo
from finitune.monitor.heal.past import Past
from finitune.monitor.heal.retaken import kept_by, mebibytes, orders_for, take
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.rerun import losses_of
from finitune.reports.sentences import counted, several

action = "rolled-back"
FEW = 0.5
"""Where a larger share of the steps does damage, it is no matter of single batches."""
MOST = 2
"""Times per run; after that the same cause is cured for all later batches, not for those that were seen."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past = kept_by(case)
    if past.skips >= MOST:
        raise Unable(f"batches were skipped {MOST} times already")
    guilty, steps = _guilty(case, past), [one.step for one in past.steps]
    others = [step for step in steps if step not in guilty]
    rates = {one.step: max(one.rates) for one in past.steps}
    if max(rates[step] for step in guilty) > max(rates[step] for step in others):
        raise Unable("the steps that did the damage had a higher learning rate than the others")
    what, instead = _batches(guilty), _batches(others[: len(guilty)])
    orders = orders_for(past, skipped=guilty)
    return Cure(
        text=f"back to the weights of step {steps[0] - 1}, and the last {counted(len(steps), 'step')} taken again "
        f"without {what}",
        price=f"{what} not learned from, {mebibytes(past):.1f} MiB of copies",
        targets=frozenset(f"batch of step {step}" for step in guilty),
        change=partial(past.again, times=1.0, skipped=guilty),
        placebo=partial(past.again, times=1.0, skipped=others[: len(guilty)]),
        instead=f"{instead} left out instead",
        apply=lambda: repeat(case.watched, orders),
        orders=orders,
        places=(what,),
    )


def _batches(steps: list[int]) -> str:
    return f"the batch{'es' * (len(steps) > 1)} of {several('step', steps)}"


def _guilty(case: Case, past: Past) -> list[int]:
    """The steps that do damage, each of them beside the others that are left; at most FEW of all."""
    steps = [one.step for one in past.steps]
    begin = _loss(case, past, steps)

    def damaged(count: int, guilty: list[int]) -> bool:
        """After the first `count` steps, but for the `guilty` ones."""
        return not _loss(case, past, [*guilty, *steps[count:]]) <= DIVERGED * begin

    guilty: list[int] = []
    while damaged(len(steps), guilty):
        if len(guilty) + 1 > FEW * len(steps):
            raise Unable(f"more than {FEW:.0%} of the last {len(steps)} steps do damage")
        healthy, bad = 0, len(steps)
        while bad - healthy > 1:
            middle = (healthy + bad) // 2
            healthy, bad = (healthy, middle) if damaged(middle, guilty) else (middle, bad)
        guilty.append(steps[bad - 1])
    if not guilty:
        raise Unable("the last steps, taken again, do no damage")
    return sorted(guilty)


@torch.no_grad()
def _loss(case: Case, past: Past, skipped: list[int]) -> float:
    """Of the oldest batch that is kept, after the steps but for those of `skipped`; NaN is no loss."""
    case.inquiry.limits.check()
    case.runs += 1
    setting = case.inquiry.setting()
    try:
        with past.again(setting, 1.0, skipped=skipped):
            return sum(losses_of(replace(setting, capture=past.steps[0].capture, run_scale=None)))
    except (RuntimeError, ValueError) as error:
        if len(skipped) == len(past.steps):
            raise Unable(f"the last steps cannot be taken again ({error})") from None
        return math.nan


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """All ranks leave out the same steps, each its own batches of them."""
    past, _, put_back = take(watched, orders)
    past.skips += 1
    past.steps.clear()

    def undo() -> None:
        put_back()
        past.skips -= 1

    return undo

"""The step is computed once more, on the same weights, batch and random numbers, and taken.

Needs: a step that came out finite when it was run again, twice with the same loss to the last bit, and a loop whose
gradients the replay can compute: a torch optimizer. Price: two more forwards and
backwards; nothing for later steps. Undo: nothing stays changed but the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from finitune.monitor.heal.cure import Case, Cure, Now, Unable
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.replay.rerun import rerun

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    if case.inquiry.repeats is not False:
        raise Unable("the step repeats")
    check_able(case.now)
    case.runs += 2
    first, second = rerun(case.inquiry.setting()), rerun(case.inquiry.setting())
    if first.losses != second.losses or not first.norms.equal(second.norms):
        raise Unable("the step comes out differently each time")
    step = case.reading.step
    return Cure(
        text=f"step {step} computed again and taken",
        price="",
        targets=frozenset({f"step {step}"}),
        change=lambda _: nullcontext(),
        placebo=None,
        instead="",
        apply=lambda: put_gradients(case.now, lambda: case.inquiry.capture),
        orders={},
    )


def repeat_step(now: Now, orders: Mapping[str, Any]) -> None:
    """Every rank computes its part again, that of the others was right."""
    put_gradients(now, lambda: now.setting.capture)

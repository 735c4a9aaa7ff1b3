"""The step is computed once more, on the same weights, batch and random numbers, and taken.

Needs: a step that came out finite when it was run again, twice with the same loss to the last bit, and a loop whose
gradients the replay can compute: a torch optimizer in one process, without a GradScaler. Price: two more forwards and
backwards; nothing for later steps. Undo: nothing stays changed but the step itself.
"""

from __future__ import annotations

from contextlib import nullcontext

from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.replay.rerun import rerun

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    if case.inquiry.repeats is not False:
        raise Unable("the step repeats")
    check_able(case)
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
        apply=lambda: put_gradients(case, case.inquiry.capture),
    )

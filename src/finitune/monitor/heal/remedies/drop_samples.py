"""The samples at fault are left out of the step, which is taken with the others.

Needs: samples that can be told apart in the replay, and a loop whose gradients the replay can compute: a torch
optimizer in one process, without a GradScaler. Price: one more forward and backward; nothing for later steps.
Undo: nothing stays changed but the step itself.
"""

from __future__ import annotations

from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.replay.arms import leave_rows_out
from finitune.monitor.replay.fewer_rows import rows_of, without
from finitune.reports.sentences import counted, several

action = "skipped-batch"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    capture, rows = case.inquiry.capture, case.inquiry.at_fault
    if not rows:
        raise Unable("no few samples of the batch are at fault")
    check_able(case)
    total = sum(map(rows_of, capture.micro_steps))
    others = [row for row in range(total) if row not in rows][: len(rows)]

    def apply() -> None:
        put_gradients(case, without(capture, rows))

    step = case.reading.step
    return Cure(
        text=f"{several('sample', rows)} left out, the step is taken with the other {total - len(rows)} of {total}",
        price=f"{counted(len(rows), 'sample')} not learned from",
        targets=frozenset(f"step {step}, sample {row}" for row in rows),
        change=lambda setting: leave_rows_out(setting, ",".join(map(str, rows))),
        placebo=lambda setting: leave_rows_out(setting, ",".join(map(str, others))),
        instead=f"{several('sample', others)} left out instead",
        apply=apply,
        places=(f"{several('sample', rows)} of step {step}",),
    )

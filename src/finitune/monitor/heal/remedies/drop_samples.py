"""The samples at fault are left out of the step, which is taken with the others.

Needs: samples that can be told apart in the replay, and a loop whose gradients the replay can compute: a torch
optimizer by itself, under a GradScaler or within DeepSpeed's ZeRO 1 or 2, on ranks that hold the whole model. Each rank
leaves out its own. No loss scale is lowered for such a step. Price: one more forward and backward; nothing for later
steps. Undo: nothing stays changed but the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.cure import Case, Cure, Now, Unable
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.replay.arms import leave_rows_out
from finitune.monitor.replay.fewer_rows import guilty, rows_of, without
from finitune.monitor.replay.rerun import rerun
from finitune.reports.sentences import counted, several

action = "skipped-batch"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    capture, rows = case.inquiry.capture, case.inquiry.at_fault
    if not rows:
        raise Unable("no few samples of the batch are at fault")
    check_able(case.now)
    total = sum(map(rows_of, capture.micro_steps))
    others = [row for row in range(total) if row not in rows][: len(rows)]

    step, orders = case.reading.step, {"rank": case.watched.group.rank, "rows": list(rows)}
    return Cure(
        text=f"{several('sample', rows)} left out, the step is taken with the other {total - len(rows)} of {total}",
        price=f"{counted(len(rows), 'sample')} not learned from",
        targets=frozenset(f"step {step}, sample {row}" for row in rows),
        change=lambda setting: leave_rows_out(setting, ",".join(map(str, rows))),
        placebo=lambda setting: leave_rows_out(setting, ",".join(map(str, others))),
        instead=f"{several('sample', others)} left out instead",
        apply=lambda: repeat_step(case.now, orders),
        orders=orders,
        places=(f"{several('sample', rows)} of step {step}",),
    )


def repeat_step(now: Now, orders: Mapping[str, Any]) -> None:
    """The rows that were found by the rank that decides; another one looks for those of its own part of the batch."""
    capture = now.setting.capture

    def others() -> Capture:
        rows = orders["rows"]
        if now.watched.group.rank != orders["rank"]:
            check_able(now)
            rows = () if _is_finite(now, capture) else guilty(capture, lambda some: _is_finite(now, some))
        return without(capture, rows) if rows else capture

    put_gradients(now, others)


def _is_finite(now: Now, capture: Capture) -> bool:
    return rerun(replace(now.setting, capture=capture)).finite

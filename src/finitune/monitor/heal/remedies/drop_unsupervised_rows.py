"""Micro-batches without any target are left out of the step; where there is no other, the step is.

Needs: micro-batches whose samples are counted; and where others are left, a loop whose gradients the replay can
compute: a torch optimizer in one process. Price: one more forward and backward where a step is
taken. Undo: nothing stays changed but the step itself.
"""

from __future__ import annotations

import math

import torch

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.replay.arms import label_every_token, shuffle_tokens
from finitune.monitor.replay.rerun import losses_of

action = "skipped-batch"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    capture, step = case.inquiry.capture, case.reading.step
    case.runs += 1
    with torch.no_grad():
        losses = losses_of(case.inquiry.setting())
    kept = [micro for micro, loss in zip(capture.micro_steps, losses, strict=True) if math.isfinite(loss)]
    empty = len(capture.micro_steps) - len(kept)
    if not empty:
        raise Unable("every micro-batch has a target")
    text = f"step {step} is left out: its batch has no target"
    if kept:
        check_able(case.now)
        text = f"{empty} of {len(capture.micro_steps)} micro-batches left out of the step: they have no target"

    def apply() -> None:
        if kept:
            put_gradients(case.now, lambda: Capture(micro_steps=kept))

    return Cure(
        text=text,
        price="",
        targets=frozenset({f"step {step}"}),
        change=label_every_token,
        placebo=shuffle_tokens,
        instead="its tokens in another order",
        apply=apply,
        places=(f"step {step}",),
    )

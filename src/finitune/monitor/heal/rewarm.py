"""A learning rate that a remedy has lowered comes back to what the schedule sets, twofold at a time, where it is borne.

Borne means: the last steps, taken again on the side at twice their rate, leave a lower loss over all of their batches
than they did. What is not borne is tried again after twice as many steps; the rate at which the run diverged a second
time is not tried again, and after a jump of the schedule no rate beyond that of before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from finitune.monitor.heal.past import Past
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.replay.rerun import Setting, losses_of

TIMES = 2.0
LEAST_STEPS = 16
"""Steps at the present rate that are taken again."""


@randomness_kept()
def raised(watched: Watched, step: int) -> Callable[[], None] | None:
    """Raise the rate of the later steps if the time for it has come and it is borne; returns how to take it back."""
    past: Past | None = watched.past
    if watched.group.size > 1:
        return None  # each rank would judge by its own batches
    if past is None or not past.factor < past.most or len(past.steps) < LEAST_STEPS or step < past.raise_at:
        return None
    own = past.factor
    higher = min(own * TIMES, past.most)
    past.waits = max(past.waits, LEAST_STEPS)
    if watched.model is None or not _is_borne(watched, past, higher / own):
        past.waits *= 2
        past.raise_at = step + past.waits
        return None
    past.factor, past.waits, past.raise_at = higher, LEAST_STEPS, step + LEAST_STEPS
    past.steps.clear()

    def undo() -> None:
        past.factor = past.most = own

    return undo


def _is_borne(watched: Watched, past: Past, times: float) -> bool:
    assert watched.model is not None
    setting = Setting(
        model=watched.model, optimizer=watched.optimizer(), capture=past.steps[-1].capture, group=watched.group,
        past=past,
    )  # fmt: skip
    try:
        as_taken = losses_of_all(setting, past)
        with past.again(setting, times):
            faster = losses_of_all(setting, past)
    except Exception:  # a batch that was changed since, no time left: the rate stays what it is
        return False
    return faster < as_taken


@torch.no_grad()
def losses_of_all(setting: Setting, past: Past) -> float:
    """The sum over the batches of these steps; NaN where one is not finite, and no less than any other then."""
    return sum(sum(losses_of(replace(setting, capture=one.capture))) for one in past.steps)

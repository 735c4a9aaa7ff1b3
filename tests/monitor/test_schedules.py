"""A discarded step does not advance the learning rate of a schedule per step; one per epoch goes on."""

from __future__ import annotations

import pytest
from tests.monitor.loop import BAD, Loop
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from finitune.monitor.watch import watch

SCHEDULES = {
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "StepLR": lambda o: StepLR(o, step_size=2),
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, T_max=10),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: CosineAnnealingWarmRestarts(o, T_0=5),
    "SequentialLR": lambda o: SequentialLR(o, [LinearLR(o, total_iters=3), CosineAnnealingLR(o, T_max=9)], [4]),
    "ChainedScheduler": lambda o: ChainedScheduler([LinearLR(o, total_iters=3), StepLR(o, step_size=2)]),
}


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_per_step_schedule_does_not_advance_on_a_discarded_step(schedule, made, tmp_path):
    rates = {}
    for bad in (BAD, -1):
        loop = Loop(bad=bad)
        scheduler = SCHEDULES[schedule](loop.optimizer) if made == "before" else None
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / f"run{bad}"):
            scheduler = scheduler or SCHEDULES[schedule](loop.optimizer)
            rates[bad] = []
            for _ in range(7):
                loop.step()
                scheduler.step()
                rates[bad].append(loop.optimizer.param_groups[0]["lr"])
    expected = [*rates[-1][: BAD - 1], rates[-1][BAD - 2], *rates[-1][BAD - 1 : -1]]
    assert rates[BAD] == pytest.approx(expected)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("schedule", ["LambdaLR", "StepLR", "CosineAnnealingWarmRestarts", "ChainedScheduler"])
@pytest.mark.parametrize("per_epoch", [2, 4])
def test_a_per_epoch_schedule_advances_whatever_happened_to_the_last_step(schedule, made, per_epoch, tmp_path):
    rates = {}
    for bad in (per_epoch, -1):
        loop = Loop(bad=bad)
        scheduler = SCHEDULES[schedule](loop.optimizer) if made == "before" else None
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / f"run{bad}"):
            scheduler = scheduler or SCHEDULES[schedule](loop.optimizer)
            rates[bad] = []
            for _ in range(3):
                for _ in range(per_epoch):
                    loop.step()
                scheduler.step()
                rates[bad].append(loop.optimizer.param_groups[0]["lr"])
    assert rates[per_epoch] == rates[-1]

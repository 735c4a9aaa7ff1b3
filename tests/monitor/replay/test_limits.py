"""What an investigation may take of time: others wait meanwhile, in a collective that has a time-out."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.steps import capture_of
from torch import nn

from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.ranks import Group
from finitune.monitor.replay import limits
from finitune.monitor.replay.limits import Limits, OverBudget, one_budget
from finitune.monitor.replay.rerun import rerun


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `now` sets it."""

    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls):
            return cls.now

    monkeypatch.setattr(limits, "time", Clock)
    return Clock


class Slow(nn.Linear):
    clock, seconds = None, 0.0

    def forward(self, x):
        if self.clock is not None:
            self.clock.now += self.seconds
        return super().forward(x)


def slow_step(clock, seconds):
    model = Slow(4, 2)
    setting = capture_of(model, lambda _: model(torch.ones(2, 4)).sum())
    model.clock, model.seconds = clock, seconds
    setting.limits = Limits(began=0.0)
    return setting


def test_no_run_begins_once_the_seconds_are_used_up(clock):
    setting = slow_step(clock, 25.0)
    for _ in range(3):
        rerun(setting)
    with pytest.raises(OverBudget, match="more than 60 seconds"):
        rerun(setting)
    assert clock.now == 75.0


def test_a_run_ends_in_the_middle_where_other_ranks_wait(clock, monkeypatch):
    setting = slow_step(clock, 100.0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    setting.group = Group(size=2)
    with pytest.raises(OverBudget):
        rerun(setting)


def test_the_budget_is_well_below_the_time_out_of_a_collective():
    assert 5 * limits.SECONDS < 600


def test_what_is_computed_again_beside_a_replay_has_the_same_budget(clock):
    """A backward of ten thousand operators took the whole of it three times."""
    x = torch.ones(2)
    with one_budget(Limits(seconds=10, began=clock.now)):
        clock.now = 11
        with OperatorWatch.of_arithmetic(), pytest.raises(OverBudget, match="more than 10 seconds"):
            x.exp()
    with OperatorWatch.of_arithmetic():
        x.exp()

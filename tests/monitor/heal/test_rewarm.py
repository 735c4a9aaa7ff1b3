"""A rate that was lowered comes back where the last steps learn more with it, and nowhere else."""

from __future__ import annotations

import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.monitor.heal.rewarm import LEAST_STEPS, TIMES, raised
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.repairs.repair import repair


class Loop:
    """A regression at a rate that suits it once the first steps are over, where it is three times too high."""

    def __init__(self, rate=0.3, steps=80, steep=1.0):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        self.steps, self.steep, self.losses, self.rates = steps, steep, [], []

    def train(self, steps=None):
        for _ in range(steps or self.steps):
            step = len(self.losses) + 1
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            loss = F.mse_loss(self.model(x), x[:, :3]) * (self.steep if step < 8 else 1.0)
            loss.backward()
            self.optimizer.step()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.schedule.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self


def watched_with(loop, factor, tmp_path):
    guard = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal")
    with guard:
        loop.train(2)
        (watched,) = list(guard._optimizers)
        watched.past.factor = factor
        watched.past.steps.clear()
        loop.train(LEAST_STEPS + 4)
    return watched


def bits(loop):
    return [p.detach().clone() for p in loop.model.parameters()]


@pytest.mark.slow
def test_a_rate_that_is_borne_is_doubled_and_taken_back(tmp_path):
    loop = Loop(rate=0.1)
    watched = watched_with(loop, 0.1, tmp_path)
    before = bits(loop)
    undo = raised(watched, 22)
    assert watched.past.factor == pytest.approx(0.1 * TIMES)
    assert all(map(torch.equal, before, bits(loop))), "the weights stay those that were trained"
    assert raised(watched, 23) is None, "not before it has run so for a while"
    undo()
    assert (watched.past.factor, watched.past.most) == (0.1, 0.1)
    assert raised(watched, 200) is None, "what did not hold is not tried again"


@pytest.mark.slow
def test_stays_quiet_where_the_higher_rate_learns_less(tmp_path):
    loop = Loop(rate=60.0)
    watched = watched_with(loop, 0.03, tmp_path)
    before = bits(loop)
    assert raised(watched, 22) is None
    assert watched.past.factor == 0.03
    assert all(map(torch.equal, before, bits(loop)))
    assert watched.past.raise_at == 22 + 2 * LEAST_STEPS, "and it is tried less often"


def test_stays_quiet_where_no_rate_was_lowered_or_the_steps_are_few(tmp_path):
    loop = Loop()
    watched = watched_with(loop, 1.0, tmp_path)
    assert raised(watched, 22) is None
    watched.past.factor = 0.5
    del watched.past.steps[LEAST_STEPS - 1 :]
    assert raised(watched, 22) is None


@pytest.mark.slow
def test_a_run_that_diverged_at_its_start_comes_back_to_its_schedule(tmp_path, capsys, monkeypatch):
    """Its first steps are steep, as without warm-up; later ones bear the rate that the schedule sets."""
    loop, never = Loop(steep=300.0, steps=240), Loop(steps=240).train()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
    events = Recording.load(tmp_path / "run").events("remedy")
    assert events[0]["remedy"] == "lower-learning-rate"
    assert watched.past.factor > 0.1, "it came back"
    assert loop.rates == never.rates, "the schedule goes on as it is"
    assert watched.past.factor == 1.0
    slow = Loop(steep=300.0, steps=240)
    monkeypatch.setattr("finitune.monitor.heal.policy.raised", lambda *_: None)
    with watch(slow.model, slow.optimizer, run_dir=tmp_path / "slow", mode="heal"):
        slow.train()
    assert statistics.mean(loop.losses[-16:]) < 0.5 * statistics.mean(slow.losses[-16:])
    (done,) = repair(from_run=tmp_path / "run").by_hand
    assert done.remedy.patch == {"warmup_steps": watched.past.raise_at - LEAST_STEPS}, "not the lowest rate of the run"
    said = capsys.readouterr().err
    assert "the rate comes back to" in said
    assert "the last steps learn more with it; watched for 16 steps" in said

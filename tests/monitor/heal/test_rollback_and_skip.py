"""Batches in another unit go into the weights unclipped: the run goes back, and takes the steps without them."""

from __future__ import annotations

import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.heal.remedies import rollback_and_skip
from finitune.monitor.watch import watch
from finitune.recording import Recording

STEPS = 90


class Shards:
    """A regression in a plain loop of SGD; some batches come from a shard whose targets are in another unit."""

    def __init__(self, odd=(), unit=1e3, rate=0.1, jumps=()):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.odd, self.unit, self.jumps, self.losses = odd, unit, jumps, []

    def train(self, steps=STEPS, left_out=()):
        generator = torch.Generator().manual_seed(1)
        for step in range(1, steps + 1):
            x = torch.randn(16, 8, generator=generator)
            y = (x[:, :2] - x[:, 2:4]) * (self.unit if step in self.odd else 1.0)
            if step in self.jumps:
                self.optimizer.param_groups[0]["lr"] *= 1e3
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            if step not in left_out:
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self


def healed(loop, directory):
    with watch(loop.model, loop.optimizer, run_dir=directory, mode="heal"):
        loop.train()
    return [one for one in Recording.load(directory).events("remedy") if one["state"] != "advice"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ((40,), ["the batch of step 40"]),
        pytest.param(range(40, 46), ["the batches of steps 40-45"], marks=pytest.mark.slow),
        ((34, 38, 39), ["the batch of step 34", "the batches of steps 38-39"]),
    ],
)
def test_exactly_the_odd_batches_are_left_out(odd, words, tmp_path, capsys):
    """What the run ends with are the weights of a run that has never seen them, bit for bit."""
    loop, reference = Shards(odd, unit=1e4), Shards().train(left_out=odd)
    events = healed(loop, tmp_path / "run")
    assert {one["remedy"] for one in events} == {"rollback-and-skip"}
    applied = [one for one in events if one["state"] == "applied"]
    assert [one["state"] for one in events] == ["applied"] * len(words) + ["kept"] * len(words)
    assert (applied[0]["cause"], applied[0]["action"]) == ("missing-gradient-clipping", "rolled-back")
    assert all(said in one["text"] for said, one in zip(words, applied, strict=True))
    assert max(loop.losses) > 1e6
    assert statistics.mean(loop.losses[-8:]) == pytest.approx(statistics.mean(reference.losses[-8:]), rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(loop.model.parameters(), reference.model.parameters(), strict=True))
    assert f"rollback-and-skip   (advice): {events[0]['places'][0]}" in capsys.readouterr().err
    assert diagnose(tmp_path / "run").incidents[-1].action == "rolled-back"


@pytest.mark.slow
def test_after_so_many_times_gradients_are_clipped_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(rollback_and_skip, "MOST", 0)
    events = healed(Shards((40,), unit=1e4), tmp_path / "run")
    assert [one["remedy"] for one in events] == ["clip-gradients", "clip-gradients"]


@pytest.mark.slow
def test_stays_quiet_where_the_rate_is_at_fault(tmp_path):
    """A rate that jumps does damage by whatever batch comes."""
    events = healed(Shards(jumps=(40,)), tmp_path / "run")
    assert "rollback-and-skip" not in {one["remedy"] for one in events}


@pytest.mark.slow
def test_stays_quiet_where_every_batch_is_odd(tmp_path):
    events = healed(Shards(range(30, STEPS + 1), unit=1e4), tmp_path / "run")
    assert "rollback-and-skip" not in {one["remedy"] for one in events}

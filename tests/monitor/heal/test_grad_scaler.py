"""A loop in float16 with a GradScaler: its steps are taken again and after all, with the scale taken off as it does."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loop import same
from torch import nn

from finitune.gym.data import batches
from finitune.gym.fault import faults
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.heal.bounds import Clipped
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.watch import watch
from finitune.recording import Recording

LOST = (7, 12)
ROWS = 8
SCALE = 256.0
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
"""A step computed in float16 once with and once without a row; float16 keeps three digits."""


def fused(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def plain(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


class Loop:
    """As torch's own example of mixed precision."""

    def __init__(self, make=plain, *, clip=None, unscales=True, accumulate=1, interval=2000):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = make(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=interval)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.clip, self.unscales, self.accumulate, self.losses = clip, unscales, accumulate, []

    def train(self, steps, lost=(), leave_out=False, value=math.nan):
        for step in range(1, steps + 1):
            for micro in range(self.accumulate):
                x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(100 * step + micro))
                y = x[:, :3] - x[:, 3:]
                if step in lost and micro == 0:
                    x[2] = value
                if step in lost and micro == 0 and leave_out:
                    x, y = x[[0, 1, 3, 4, 5, 6, 7]], y[[0, 1, 3, 4, 5, 6, 7]]
                with torch.autocast("cpu", torch.float16):
                    loss = F.mse_loss(self.model(x), y) / self.accumulate
                self.scaler.scale(loss).backward()
            if self.clip is not None:
                if self.unscales:
                    self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self

    def state(self):
        moments = [self.optimizer.state.get(p, {}) for p in self.model.parameters()]
        return [
            {name: value.clone() for name, value in self.model.state_dict().items()},
            [{name: value.clone() for name, value in entries.items()} for entries in moments],
        ]


def healed(loop, directory, **what):
    with watch(loop.model, loop.optimizer, run_dir=directory, mode="heal"):
        loop.train(**what)
    recording = Recording.load(directory)
    assert not recording.events("broken")
    return recording


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [plain, fused])
@pytest.mark.parametrize("more", [{}, {"clip": 0.05}, {"accumulate": 2}], ids=["", "clipped", "accumulated"])
def test_a_lost_record_is_left_out_and_no_scale_is_lowered_for_it(more, make, value, tmp_path):
    loop, whole = Loop(make, **more), Loop(make, **more)
    recording = healed(loop, tmp_path, steps=20, lost=LOST, value=value)
    whole.train(20, lost=LOST, leave_out=True)
    done = [(event["remedy"], event["step"], event["state"]) for event in recording.events("remedy")]
    assert done == [("drop-samples", step, "for its step") for step in LOST]
    assert recording.signals["skipped"].values.sum() == 0
    assert loop.scaler.get_scale() == SCALE
    assert loop.schedule.last_epoch == 20
    for a, b in zip(loop.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_the_scale_grows_as_if_every_step_had_been_finite(tmp_path):
    loop = Loop(interval=5)
    healed(loop, tmp_path, steps=20, lost=LOST)
    assert loop.scaler.get_scale() == SCALE * 2**4


@pytest.mark.parametrize("make", [plain, fused])
def test_where_the_loop_clips_scaled_gradients_it_is_advice(make, tmp_path, capsys):
    loop = Loop(make, clip=10.0, unscales=False)
    recording = healed(loop, tmp_path, steps=12, lost=LOST[:1])
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert "drop-samples: the loop clips gradients that still carry the loss scale" in capsys.readouterr().err
    assert recording.signals["skipped"].values.sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [plain, fused])
@pytest.mark.parametrize("more", [{}, {"clip": 0.05}, {"accumulate": 2}, {"interval": 6}])
def test_the_last_steps_taken_again_give_the_same_bits(more, make, tmp_path):
    loop = Loop(make, **more)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path, mode="heal") as watching:
        loop.train(20)
        (watched,) = list(watching._optimizers)
        past, after = watched.past, loop.state()
    assert past.why_not is None
    setting = Setting(model=loop.model, optimizer=loop.optimizer, capture=past.steps[-1].capture, past=past)
    past.take_again(setting, 0.1)
    assert not same(after, loop.state())
    past.take_again(setting, 1.0)
    assert same(after, loop.state())


@pytest.mark.parametrize("mode", ["heal", "guard"])
@pytest.mark.parametrize("make", [plain, fused])
def test_a_healthy_run_is_the_same_bit_for_bit(make, mode, tmp_path):
    loop, alone = Loop(make, clip=1.0, interval=6), Loop(make, clip=1.0, interval=6).train(20)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path, mode=mode):
        loop.train(20)
    assert loop.losses == alone.losses
    assert same(loop.state(), alone.state())
    assert not Recording.load(tmp_path).events("remedy", "incident")


def test_in_guard_the_scaler_skips_alone(tmp_path):
    loop, alone = Loop(), Loop().train(20, lost=LOST)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path):
        loop.train(20, lost=LOST)
    assert same(loop.state(), alone.state())
    assert loop.scaler.get_scale() == alone.scaler.get_scale() == SCALE / 4


def test_a_bound_sees_gradients_without_their_scale(tmp_path):
    """Also where a fused kernel takes it off later."""
    after = []
    for fuses in (False, True):
        loop = Loop(lambda p, fuses=fuses: torch.optim.SGD(p, lr=0.05, fused=fuses))
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / str(fuses), mode="heal") as watching:
            loop.train(2)
            (watched,) = list(watching._optimizers)
            watched.past.bound = Clipped(usual=dict.fromkeys(range(4), 0.01))
            loop.train(5)
        assert max(watched.past.bound.usual.values()) < 0.1
        after.append(loop.state()[0])
    for name, weight in after[0].items():
        torch.testing.assert_close(after[1][name], weight)


class Shards:
    """A regression by SGD in float16; one batch comes from a shard whose targets are in another unit."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler, self.losses = torch.amp.GradScaler("cpu", init_scale=2.0), []

    def train(self, odd=(), left_out=(), steps=80):
        generator = torch.Generator().manual_seed(1)
        for step in range(1, steps + 1):
            x = torch.randn(16, 8, generator=generator)
            y = (x[:, :2] - x[:, 2:4]) * (1e4 if step in odd else 1.0)
            with torch.autocast("cpu", torch.float16):
                loss = F.mse_loss(self.model(x), y)
            if step not in left_out:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self


@pytest.mark.slow
def test_the_run_goes_back_and_leaves_out_the_batch_that_did_the_damage(tmp_path):
    loop, without = Shards(), Shards().train(left_out=[40])
    events = healed(loop, tmp_path, odd=[40]).events("remedy")
    assert [(one["remedy"], one["state"]) for one in events] == [
        ("rollback-and-skip", "applied"), ("rollback-and-skip", "kept")
    ]  # fmt: skip
    assert events[0]["places"] == ["the batch of step 40"]
    assert max(loop.losses) > 1e6
    assert statistics.mean(loop.losses[-8:]) == pytest.approx(statistics.mean(without.losses[-8:]), rel=1e-3)


@pytest.mark.slow
def test_a_rate_that_leaves_float16_before_the_loss_has_climbed(tmp_path):
    """After two steps: no curve speaks of it, only that the step is finite with the weights of before."""
    options = Options(dtype="float16-autocast", clip=None, initial_scale=2.0)
    run = prepare(tiny("llama"), batches(40), lambda p: torch.optim.SGD(p, lr=100.0), options)
    with float16_on_cpu(), watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        steps = list(train(run))
    applied = Recording.load(tmp_path / "run").events("remedy")[0]
    assert (applied["remedy"], applied["state"]) == ("lower-learning-rate", "applied")
    assert applied["step"] <= 4
    assert statistics.mean(step.loss for step in steps[-5:]) < steps[0].loss


@pytest.mark.slow
def test_a_run_that_diverged_goes_on_at_a_lower_rate(tmp_path):
    run = faults()["lr-too-high"].build("qwen2", tmp_path)
    with float16_on_cpu(), watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        steps = list(train(run))
    applied = Recording.load(tmp_path / "run").events("remedy")[0]
    assert (applied["remedy"], applied["state"], applied["step"]) == ("lower-learning-rate", "applied", 5)
    assert statistics.mean(step.loss for step in steps[-5:]) < steps[0].loss
    assert {step.loss_scale for step in steps} == {16.0}, "the overflow was that of the weights"

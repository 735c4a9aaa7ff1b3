"""A sample that spoils the step is left out of it, and the step is taken with the others, exactly as the loop would."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loop import same
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 6
ROWS = 8


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(100 * step + micro)
    x = torch.randn(ROWS, 6, generator=generator)
    return x, torch.stack([x[:, 0] + x[:, 1], x[:, 2], -x[:, 3]], 1)


def mean_square(out, y):
    return F.mse_loss(out, y)


def absolute(out, y):
    return nn.L1Loss()(out, y)


def classes(out, y):
    return F.cross_entropy(out, y.argmax(1))


def flattened(out, y):
    return F.cross_entropy(out.view(-1, 3), y.argmax(1).reshape(-1), ignore_index=-100)


def spoiled(x, y, value, rows, where):
    (x if where == "input" else y)[list(rows)] = value
    return x, y


class Loop:
    """A plain loop. With `rows` left out of step BAD it is the run that the healed one must equal."""

    def __init__(self, loss=mean_square, make=None, clip=None, accumulate=1):
        self.model, self.loss, self.clip, self.accumulate = net(), loss, clip, accumulate
        self.optimizer = (make or (lambda p: torch.optim.AdamW(p, lr=1e-2)))(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.99)
        self.losses, self.divide = [], 1

    def train(self, steps, value=None, rows=(), where="input", leave_out=False, every=None):
        for step in range(len(self.losses) + 1, steps + 1):
            bad = step == BAD or (every and step >= BAD and step % every == 0)
            total = 0.0
            for micro in range(self.accumulate):
                x, y = batch(step, micro)
                if bad and micro == self.accumulate - 1 and value is not None:
                    x, y = spoiled(x, y, value, rows, where)
                if bad and micro == self.accumulate - 1 and leave_out:
                    keep = [row for row in range(ROWS) if row not in rows]
                    x, y = x[keep], y[keep]
                loss = self.loss(self.model(x), y) / self.accumulate
                loss.backward()
                total += float(loss.detach())
            for p in self.model.parameters() if self.divide != 1 else ():
                p.grad.div_(self.divide)
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.losses.append(total)
        return self


def healed(loop, tmp_path, steps=20, **fault):
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(steps, **fault)
    return Recording.load(tmp_path / "run")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("where", ["input", "target"])
def test_the_step_is_the_one_that_the_loop_would_take_without_the_sample(value, where, tmp_path, capsys):
    if (value, where) == (1e30, "input"):
        pytest.skip("tanh keeps it finite")
    loop, reference = Loop(clip=0.5), Loop(clip=0.5)
    recording = healed(loop, tmp_path, value=value, rows=(5,), where=where)
    reference.train(20, rows=(5,), leave_out=True)
    for ours, theirs in zip(loop.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert loop.schedule.last_epoch == reference.schedule.last_epoch
    assert loop.losses[-1] == pytest.approx(reference.losses[-1], rel=1e-4)
    (done,) = recording.events("remedy")
    assert (done["remedy"], done["cause"], done["action"]) == ("drop-samples", "bad-data-sample", "skipped-batch")
    assert recording.signals["skipped"].values.sum() == 0
    assert not recording.events("broken", "stop")
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.action, incident.causes[0].proved) == ("skipped-batch", True)
    said = capsys.readouterr().err
    assert "sample 5 left out, the step is taken with the other 7 of 8" in said
    assert "sample 5 of step 6" in said.split("healed 1 time")[1]


@pytest.mark.parametrize("loss", [mean_square, absolute, classes, flattened])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_several_samples_in_any_loss_and_micro_step(loss, accumulate, tmp_path):
    loop, reference = Loop(loss=loss, accumulate=accumulate), Loop(loss=loss, accumulate=accumulate)
    recording = healed(loop, tmp_path, value=math.nan, rows=(0, 3, 6))
    reference.train(20, rows=(0, 3, 6), leave_out=True)
    for ours, theirs in zip(loop.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert len(recording.events("remedy")) == 1


def test_a_batch_that_is_bad_as_a_whole_is_no_matter_of_samples(tmp_path, capsys):
    loop = Loop()
    recording = healed(loop, tmp_path, value=math.nan, rows=range(ROWS))
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert recording.signals["skipped"].values.sum() == 1
    assert "not healed: no cause is proved" in capsys.readouterr().err


def test_a_loss_that_mixes_samples_is_not_cut(tmp_path):
    loop = Loop(loss=lambda out, y: F.mse_loss(torch.cat([out, -out]), torch.cat([y, y])))
    recording = healed(loop, tmp_path, value=math.nan, rows=(2,))
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert recording.signals["skipped"].values.sum() == 1


def test_a_loop_that_changes_its_gradients_by_hand_is_left_alone(tmp_path, capsys):
    """It divides them by a scale that nobody knows, so those of the replay are far too large."""
    loop = Loop(loss=lambda out, y: 4096 * F.mse_loss(out, y))
    loop.divide = 4096
    recording = healed(loop, tmp_path, value=math.nan, rows=(2,))
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert "is unlike those of the run" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [1, 3])
def test_what_breaks_in_between_lets_no_bad_update_through(fails, tmp_path, monkeypatch):
    """A fault of finitune itself, when some gradients have been replaced already."""
    loop = Loop()
    copied = torch.Tensor.copy_
    calls = []

    def copy_(self, other, *args, **kwargs):
        calls.append(self)
        if len(calls) == fails:
            raise RuntimeError("no memory")
        return copied(self, other, *args, **kwargs)

    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(BAD - 1)
        before = copy.deepcopy([loop.model.state_dict(), loop.optimizer.state_dict()["state"]])
        from finitune.monitor.heal import step_again

        replace = step_again._replace

        def replaced(*args):
            monkeypatch.setattr(torch.Tensor, "copy_", copy_)
            try:
                replace(*args)
            finally:
                monkeypatch.undo()

        monkeypatch.setattr(step_again, "_replace", replaced)
        loop.train(BAD, value=math.nan, rows=(5,))
        assert same(before, [loop.model.state_dict(), loop.optimizer.state_dict()["state"]])
        assert len(calls) >= fails
        loop.train(20)
    assert all(p.isfinite().all() for p in loop.model.parameters())
    assert len(Recording.load(tmp_path / "run").events("broken")) == 1


@pytest.mark.slow
def test_the_number_of_changes_is_bounded(tmp_path):
    from finitune.monitor.heal.policy import MOST_PER_RUN

    loop = Loop()
    with pytest.raises(Stopped):
        healed(loop, tmp_path, steps=80, value=math.nan, rows=(1,), every=1)
    recording = Recording.load(tmp_path / "run")
    states = [event["state"] for event in recording.events("remedy")]
    assert states == ["for its step"] * MOST_PER_RUN + ["advice"]
    assert len(recording.events("stop")) == 1


def test_in_guard_nothing_of_this_happens(tmp_path):
    loop = Loop()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.train(20, value=math.nan, rows=(5,))
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("remedy")
    assert recording.signals["skipped"].values.sum() == 1

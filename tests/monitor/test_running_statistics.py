"""Running statistics that a bad batch has spoilt are put back; healthy ones are left alone."""

import math

import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD, STEPS = 5, 9
VALUES = [math.nan, math.inf, -math.inf]


class Loop:
    def __init__(self, *, dtype=torch.float32, value=math.nan, bad=BAD, skips=False, scaler=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.randn(STEPS + 1, 16, 4).to(dtype)
        self.x[bad, 3, 1] = value
        self.skips, self.scaler = skips, scaler
        self.seen = []

    @property
    def norm(self):
        return self.model[1]

    def train(self):
        for step in range(1, STEPS + 1):
            loss = (self.model(self.x[step]) - 1).square().mean()
            self.optimizer.zero_grad()
            if not (self.skips and not loss.isfinite()):
                if self.scaler is None:
                    loss.backward()
                    self.optimizer.step()
                else:
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            self.seen.append((self.norm.running_mean.clone(), self.norm.running_var.clone()))
        return self

    def watched(self, directory, **more):
        with watch(self.model, self.optimizer, run_dir=directory, **more):
            self.train()
        recording = Recording.load(directory)
        assert not recording.events("broken")
        return recording


def finite(seen):
    return all(bool(tensor.isfinite().all()) for tensor in seen)


def put_back(recording):
    return [(e["step"], e["text"]) for e in recording.events("action") if "running statistics" in e["text"]]


@pytest.mark.parametrize(("dtype", "value"), [
    *((torch.float32, value) for value in VALUES), (torch.float64, math.nan), (torch.bfloat16, math.inf),
])  # fmt: skip
@pytest.mark.slow
def test_after_a_discarded_step_they_are_those_of_the_step_before(tmp_path, capfd, value, dtype):
    loop = Loop(dtype=dtype, value=value)
    recording = loop.watched(tmp_path / "run")
    text = f"the running statistics of 1 batch norm (1) were not finite; those of step {BAD - 1} are put back"
    assert put_back(recording) == [(BAD, text)]
    assert f"finitune: step {BAD}: {text}\n" in capfd.readouterr().err
    assert [bool(torch.equal(a, b)) for a, b in zip(loop.seen[BAD - 2], loop.seen[BAD - 1], strict=True)] == [True] * 2
    assert all(map(finite, loop.seen))
    assert not finite(Loop(dtype=dtype, value=value).train().seen[-1])  # as it is without finitune


@pytest.mark.parametrize("value", VALUES)
def test_a_loop_that_skips_bad_batches_by_itself(tmp_path, value):
    loop = Loop(value=value, skips=True)
    recording = loop.watched(tmp_path / "run")
    assert [finite(seen) for seen in loop.seen] == [step != BAD for step in range(1, STEPS + 1)]
    assert len(put_back(recording)) == 1
    assert diagnose(tmp_path / "run").verdict == "healthy"


def test_numbers_of_which_only_the_variance_is_infinite(tmp_path):
    """The loss and all gradients stay finite."""
    loop = Loop(value=1e25)
    recording = loop.watched(tmp_path / "run")
    assert [step for step, _ in put_back(recording)] == [BAD]
    assert not recording.events("incident")
    assert finite(loop.seen[-1])


@pytest.mark.slow
def test_a_step_that_a_scaler_skips(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    recording = Loop(scaler=scaler).watched(tmp_path / "run")
    assert [step for step, _ in put_back(recording)] == [BAD]


@pytest.mark.slow
def test_those_of_before_the_first_step(tmp_path):
    loop = Loop(bad=1)
    recording = loop.watched(tmp_path / "run")
    (only,) = put_back(recording)
    assert only[0] == 1
    assert only[1].endswith("those of before the first step are put back")
    assert loop.seen[0][1].tolist() == [1.0] * 8


def test_an_observer_changes_nothing_and_says_what_is_lost(tmp_path):
    loop, alone = Loop(skips=True), Loop(skips=True).train()
    recording = loop.watched(tmp_path / "run", mode="observe")
    assert not put_back(recording)
    assert not finite(loop.seen[-1])
    assert torch.equal(loop.model[0].weight, alone.model[0].weight)
    diagnosis = diagnose(tmp_path / "run")
    assert diagnosis.verdict == "suspect"
    assert [one.symptom for one in diagnosis.incidents] == ["nonfinite-statistics"]


@pytest.mark.parametrize("mode", ["observe", "guard", "heal"])
def test_a_healthy_run_is_the_same_to_the_last_bit(tmp_path, mode):
    loop, alone = Loop(value=0.0), Loop(value=0.0).train()
    recording = loop.watched(tmp_path / "run", mode=mode)
    assert not recording.events("action")
    assert not recording.events("incident")
    there, known = loop.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(there[name], known[name]) for name in known)


def test_statistics_that_no_forward_writes_are_left_alone(tmp_path):
    loop = Loop(value=0.0)
    loop.norm.eval()
    loop.norm.running_var[2] = math.inf
    assert not put_back(loop.watched(tmp_path / "run"))
    assert loop.norm.running_var[2] == math.inf


def test_norms_without_running_statistics(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 4):
            x = torch.randn(16, 4)
            x[0, 0] = math.nan if step == 2 else 0.0
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert [event["step"] for event in recording.events("incident")] == [2]
    assert not put_back(recording)

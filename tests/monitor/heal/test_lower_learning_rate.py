"""A rate that is too high: the last steps are taken again at a lower one, and the schedule of the loop goes on."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loop import same
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.gym.data import batches
from finitune.gym.fault import faults
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.heal.past import EVERY, STATES, Past, State
from finitune.monitor.heal.remedies import lower_learning_rate
from finitune.monitor.heal.retaken import is_borne
from finitune.monitor.replay.rerun import Outcome, Setting
from finitune.monitor.watch import watch
from finitune.recording import Recording


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    return x, x[:, :3]


class Loop:
    def __init__(self, make=None, clip=None, loss=F.mse_loss):
        self.model, self.clip, self.loss = net(), clip, loss
        self.optimizer = (make or (lambda p: torch.optim.AdamW(p, lr=1e-2)))(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        self.taken, self.rates = 0, []

    def state(self):
        return [
            {k: v.clone() for k, v in self.model.state_dict().items()},
            [{k: v.clone() for k, v in self.optimizer.state.get(p, {}).items()} for p in self.model.parameters()],
        ]

    def train(self, steps):
        for _ in range(steps):
            self.taken += 1
            x, y = batch(self.taken)
            self.loss(self.model(x), y).backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.schedule.step()
            self.optimizer.zero_grad()
        return self


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("make", [None, lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)])
def test_the_last_steps_taken_again_at_their_own_rate_give_the_same_bits(make, clip, tmp_path):
    loop = Loop(make, clip)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(30)
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
        past, after = watched.past, loop.state()
    assert past.why_not is None
    assert EVERY * (STATES - 1) <= len(past.steps) <= EVERY * STATES
    setting = _setting(loop, past)
    with past.again(setting, 0.1):
        assert not same(after, loop.state())
    assert same(after, loop.state()), "for the time of a run"
    past.take_again(setting, 1.0)
    assert same(after, loop.state())
    assert loop.rates[-1] == pytest.approx(1e-2 * 0.95**29)


def test_taken_again_at_another_rate_they_have_the_targets_that_no_node_keeps(tmp_path):
    """As with a loss that keeps its target."""
    after = []
    for number, loss in enumerate([F.mse_loss, lambda out, y: ((out - y) ** 2).mean()]):
        loop = Loop(lambda p: torch.optim.SGD(p, lr=0.3), loss=loss)
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / str(number), mode="heal"):
            loop.train(6)
            (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
            past = watched.past
        with past.again(_setting(loop, past), 0.01):
            after.append(torch.cat([p.detach().flatten() for p in loop.model.parameters()]))
    assert torch.allclose(*after, atol=1e-5)


def squared(prediction, target):
    return ((prediction - target) ** 2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("spelled", ["in the loop", "in a function"])
def test_a_squared_error_by_hand_that_diverges_is_healed(spelled, tmp_path):
    """From one step to the next the outputs grow by some orders of magnitude, and nothing is left of the targets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch(model, optimizer, run_dir=tmp_path / "run", mode="heal"):
        for _ in range(40):
            x = torch.randn(16, 8)
            y = x.sum(1, keepdim=True)
            loss = ((model(x) - y) ** 2).mean() if spelled == "in the loop" else squared(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 8.0, "the variance of the targets"
    (bad,) = (one for one in diagnose(tmp_path / "run").incidents if one.causes)
    assert (bad.causes[0].cause, bad.causes[0].proved, bad.action) == ("lr-too-high", True, "rolled-back")


def _setting(loop, past):
    return Setting(model=loop.model, optimizer=loop.optimizer, capture=past.steps[-1].capture, past=past)


def test_a_state_is_restored_bit_for_bit_the_first_step_of_an_optimizer_included():
    loop = Loop()
    fresh, kept = loop.state(), State.of(loop.optimizer)
    loop.train(3)
    later, again = loop.state(), State.of(loop.optimizer)
    kept.restore(loop.optimizer)
    assert same(fresh, loop.state())
    assert not loop.optimizer.state
    again.restore(loop.optimizer)
    assert same(later, loop.state())


def test_a_factor_leaves_the_schedule_alone(tmp_path):
    loop, other = Loop(), Loop().train(12)
    seen = []
    loop.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(6)
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
        watched.past.factor = 0.1
        loop.train(6)
    assert loop.rates == other.rates, "what the loop sees"
    recorded = Recording.load(tmp_path / "run").signals["lr"].values.tolist()
    expected = [rate * (0.1 if place >= 6 else 1.0) for place, rate in enumerate(other.rates)]
    assert recorded == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "step"), [("llama", 5), ("gpt2", 4)], ids=["not finite", "still finite"])
def test_a_run_that_diverged_goes_on_from_before(family, step, tmp_path, capsys):
    run = faults()["lr-too-high"].build(family, tmp_path)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        losses = [step.loss for step in train(run)]
    assert all(math.isfinite(loss) for loss in losses[step:])
    assert sum(losses[-5:]) / 5 < losses[0], "it learns again"
    applied = Recording.load(tmp_path / "run").events("remedy")[0]
    assert (applied["step"], applied["remedy"], applied["state"]) == (step, "lower-learning-rate", "applied")
    bad = next(one for one in diagnose(tmp_path / "run").incidents if one.step == step)
    assert (bad.action, bad.causes[0].cause, bad.causes[0].proved) == ("rolled-back", "lr-too-high", True)
    assert "taken again, from step 1 on at 0.01 times the learning rate" in capsys.readouterr().err


@pytest.mark.slow
def test_undo_gives_the_weights_of_the_bad_step_back(tmp_path):
    run = faults()["lr-too-high"].build("llama", tmp_path)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal") as watched:
        steps = train(run)
        for _ in range(faults()["lr-too-high"].step - 1):
            next(steps)
        before = {k: v.clone() for k, v in run.model.state_dict().items()}
        next(steps)
        assert not same(before, dict(run.model.state_dict()))
        (one,) = watched._gate.healing.applied
        (known,) = list(watched._optimizers)
        assert known.past.factor < 1
        one.undo()
        assert same(before, dict(run.model.state_dict()))
        assert known.past.factor == 1.0


@pytest.mark.slow
def test_steps_before_the_climb_keep_their_rate(tmp_path, capsys):
    """The rate jumps in the middle, far beyond what the run bears."""
    loop = Loop(lambda p: torch.optim.SGD(p, lr=0.05))
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(14)
        before = loop.state()[0]
        loop.optimizer.param_groups[0]["lr"] = 20.0
        loop.train(40)
    assert "taken again, from step 15 on at " in capsys.readouterr().err
    assert all(p.isfinite().all() for p in loop.model.parameters())
    assert not same(before, loop.state()[0])


@pytest.mark.parametrize(
    ("losses", "norms", "borne"),
    [((2.0,), (1.0,), True), ((2.2,), (1.0,), False), ((2.0,), (0.0,), False), ((math.nan,), (1.0,), False)],
)
def test_a_rate_is_borne_where_the_step_is_no_worse_and_has_a_gradient(losses, norms, borne):
    before = Outcome(losses=(2.0,), norms=torch.ones(3))
    assert is_borne(before, Outcome(losses=losses, norms=torch.tensor(norms))) == borne
    assert not is_borne(before, None)


def test_nothing_is_kept_where_there_is_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr("finitune.monitor.heal.past.free_bytes", lambda _: 1000)
    loop = Loop()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train(3)
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
        assert not watched.past.steps
        assert "of what is free" in watched.past.why_not


def test_nothing_is_kept_in_other_modes(tmp_path):
    loop = Loop()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.train(3)
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
        assert watched.past is None
    assert not Past().steps


@pytest.mark.slow
def test_of_two_rates_that_are_borne_the_one_that_learns_more_is_taken(tmp_path, monkeypatch):
    """At a rate a hundred times too high, a tenth of it is borne for some steps, and nothing is learned with it."""

    def ends_at(directory):
        run = prepare(
            tiny("llama", seed=7), batches(36, seed=7), lambda p: torch.optim.SGD(p, lr=100.0), Options(clip=None)
        )
        with watch(run.model, run.optimizer, run_dir=directory, mode="heal"):
            return statistics.mean([step.loss for step in train(run)][-8:])

    chosen = ends_at(tmp_path / "chosen")
    monkeypatch.setattr(lower_learning_rate, "_learns_most", lambda case, past, before, found: found)
    assert chosen < 0.98 * ends_at(tmp_path / "largest")

"""Whose loss is measured by weights that another optimizer trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import finitune
from finitune.chapter import Sighting
from finitune.monitor import sightings
from finitune.monitor.sightings import Sightings
from finitune.series import Series


class Stepped:
    name = "SGD"

    def __init__(self, *, is_measured_by_others=False, last=2, frozen=False):
        self.is_measured_by_others = is_measured_by_others
        self.last = last
        self._parameters = [torch.ones(2, requires_grad=not frozen)]

    def parameters(self):
        return self._parameters


class Run:
    """In which no optimizer has a loss of its own beside another."""

    def __init__(self, signals):
        self.signals = signals

    def signals_of(self, _optimizer, _step):
        return self.signals


def signals(**values):
    return {name: Series(range(1, len(each) + 1), each) for name, each in values.items()}


@pytest.fixture
def rising(monkeypatch):
    """A loss that is far above its level, in every step."""
    seen = [Sighting(step=2, text="", symptom="divergence"), Sighting(step=2, text="", symptom="zero-loss")]
    monkeypatch.setattr(sightings, "sightings", lambda _signals, step: seen if step == 2 else [])
    return signals(loss=[1.0, 500.0])


@pytest.mark.parametrize(("measured", "level"), [(False, "suspicion"), (True, "note")])
def test_how_far_a_loss_is_from_its_level_is_noted_where_others_measure_it(rising, measured, level):
    found = Sightings([], Run(rising)).at(2, rising, Stepped(is_measured_by_others=measured))
    assert [(one.symptom, one.level) for one in found] == [("divergence", level), ("zero-loss", "suspicion")]


def test_the_loss_of_a_step_is_that_of_the_first_optimizer(rising):
    seen = Sightings([], Run(rising))
    seen.at(2, rising, Stepped(is_measured_by_others=True))
    second = seen.at(2, rising, Stepped(is_measured_by_others=False))
    assert second[0].level == "note"


@pytest.mark.parametrize(
    ("last", "frozen", "level"), [(1, True, "note"), (1, False, "suspicion"), (0, True, "suspicion")]
)
def test_a_critic_whose_weights_are_frozen_while_the_generator_steps(rising, last, frozen, level):
    """Under one that is frozen and has never stepped, as a teacher, a loss is its own."""
    critic, generator = Stepped(last=last, frozen=frozen), Stepped()
    seen = Sightings([generator, critic], Run(rising))
    assert seen.at(2, rising, generator)[0].level == level
    critic.parameters()[0].requires_grad_()
    assert seen.at(2, rising, critic)[0].level == level


def test_a_critic_that_is_frozen_for_good(monkeypatch):
    critic, generator = Stepped(last=2, frozen=True), Stepped(last=40)
    rising = signals(loss=[1.0] * 39 + [500.0])
    found = [Sighting(step=40, text="", symptom="divergence")]
    monkeypatch.setattr(sightings, "sightings", lambda _signals, step: found if step == 40 else [])
    assert Sightings([generator, critic], Run(rising)).at(40, rising, generator)[0].level == "suspicion"


@pytest.mark.usefixtures("rising")
def test_what_is_beyond_data_is_said_whoever_measures_it():
    far = signals(loss=[1.0] * 40 + [1e12] * 8)
    assert Sightings([], Run(far)).at(2, far, Stepped(is_measured_by_others=True))[0].level == "suspicion"


@pytest.mark.parametrize("together", [False, True])
def test_a_generator_whose_critic_drops_what_its_backward_left(tmp_path, together):
    """Where both step on one backward they train to one end."""
    torch.manual_seed(0)
    one, other = nn.Linear(2, 2), nn.Linear(2, 1)
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    with finitune.watch(one, first, run_dir=tmp_path / "run") as monitor:
        finitune.watch(other, second)
        for _ in range(2):
            first.zero_grad()
            other(one(torch.ones(3, 2))).mean().backward()
            first.step()
            if not together:
                second.zero_grad()
                other(torch.ones(3, 2)).mean().backward()
            second.step()
            if together:
                second.zero_grad()
        flags = [watched.is_measured_by_others for watched in monitor._optimizers]
    assert flags == [not together, False]


@pytest.mark.parametrize(("rate", "expected"), [(0.1, []), (2.5, ["divergence"])])
def test_the_loss_of_the_optimizer_that_steps_second_diverges(tmp_path, rate, expected):
    """The first one's is healthy; that of the second has a curvature of 1: a rate above 2 is too high."""
    torch.manual_seed(0)
    body, head = nn.Linear(4, 3), nn.Linear(3, 1, bias=False)
    first, second = torch.optim.Adam(body.parameters(), lr=1e-2), torch.optim.SGD(head.parameters(), lr=rate)
    with finitune.watch(body, first, run_dir=tmp_path / "run"):
        finitune.watch(head, second)
        for _ in range(60):
            x = torch.randn(16, 4)
            first.zero_grad()
            nn.functional.cross_entropy(body(x), x[:, :3].argmax(1)).backward()
            first.step()
            second.zero_grad()
            white = torch.randn(64, 3)
            (head(white) - white.sum(1, keepdim=True)).square().mean().div(2).backward()
            second.step()
    recording = finitune.Recording.load(tmp_path / "run")
    incidents = recording.events("incident")
    assert sorted({one["symptom"] for one in incidents}) == expected
    assert {one["optimizer"] for one in incidents} == ({"SGD (optimizer 2)"} if expected else set())
    for one in incidents:  # its cause is sought in its own loss and settings
        assert one["facts"]["optimizer"]["name"] == "SGD"
        assert recording.ranks[0].signals_of(one)["loss"].at(one["step"]) == pytest.approx(one["loss"])
        assert recording.signals["loss"].at(one["step"]) < 2 < one["loss"]


def test_the_rate_of_the_second_optimizer_is_no_signal_of_the_step(tmp_path):
    """It is held back at first, as a critic that learns too fast is."""
    torch.manual_seed(0)
    models = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
    with finitune.watch(models[0], optimizers[0], run_dir=tmp_path / "run"):
        finitune.watch(models[1], optimizers[1])
        for step in range(60):
            optimizers[1].param_groups[0]["lr"] = 1e-6 if step < 40 else 1e-3
            for model, optimizer in zip(models, optimizers, strict=True):
                x = torch.randn(16, 4)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
                optimizer.step()
    assert finitune.Recording.load(tmp_path / "run").events("incident") == []

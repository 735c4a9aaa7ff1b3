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
    def __init__(self, *, is_measured_by_others):
        self.is_measured_by_others = is_measured_by_others


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
    found = Sightings().at(2, rising, Stepped(is_measured_by_others=measured))
    assert [(one.symptom, one.level) for one in found] == [("divergence", level), ("zero-loss", "suspicion")]


def test_the_loss_of_a_step_is_that_of_the_first_optimizer(rising):
    seen = Sightings()
    seen.at(2, rising, Stepped(is_measured_by_others=True))
    second = seen.at(2, rising, Stepped(is_measured_by_others=False))
    assert second[0].level == "note"


@pytest.mark.usefixtures("rising")
def test_what_is_beyond_data_is_said_whoever_measures_it():
    far = signals(loss=[1.0] * 40 + [1e12] * 8)
    assert Sightings().at(2, far, Stepped(is_measured_by_others=True))[0].level == "suspicion"


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

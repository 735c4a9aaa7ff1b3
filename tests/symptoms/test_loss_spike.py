"""One loss far above the others; not heavy tails, other data, converged noise, or losses without a logarithm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.symptoms.runs import INF, NAN, levels, noise, seen, series

from finitune.symptoms.loss_spike import BACK, see


def trained(steps=350, seed=0, spread=0.1):
    """From 4 to 2, with noise."""
    return noise(steps, spread=spread, seed=seed) * (1 + np.exp(-np.arange(steps) / 40))


def suspicions(values):
    return [sighting.step for sighting in seen(see, series(values)) if sighting.level == "suspicion"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [3.0, 4.0])
def test_fires_as_a_note_and_as_a_suspicion_once_the_loss_is_back(seed, factor):
    values = trained(seed=seed)
    values[299] *= factor
    found = levels(seen(see, series(values)))
    assert (300, "note") in found
    assert (300 + BACK, "suspicion") in found
    assert suspicions(values) == [300 + BACK]


@pytest.mark.parametrize("seed", range(5))
def test_fires_at_once_far_above_all_that_was(seed):
    values = trained(seed=seed)
    values[299] = 200.0
    assert suspicions(values) == [300]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_fires_five_steps_after_a_value_that_is_no_number(bad):
    values = trained()
    values[294] = bad
    values[299] = 200.0
    assert suspicions(values) == [300]


def test_fires_again_soon_after_a_spike():
    """A spike does not widen the tail by which the next is judged."""
    values = trained()
    values[[279, 299]] = 200.0
    assert suspicions(values) == [280, 300]


def test_fires_with_numbers():
    values = noise(300)
    values[299] = 100.0
    sighting = see(series(values))
    assert sighting.numbers["loss"] == 100.0
    assert sighting.numbers["usual"] == pytest.approx(2.0, rel=0.1)
    assert sighting.numbers["chance"] < 1e-7
    assert "times the usual" in sighting.text


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spread", [0.001, 0.05, 0.3, 1.0])
def test_stays_quiet_on_noise(seed, spread):
    assert suspicions(trained(600, seed=seed, spread=spread)) == []


@pytest.mark.parametrize("seed", range(10))
def test_stays_quiet_on_targets_without_variance(seed):
    """A squared error whose noise has a tail of power 1: any spike is possible, and part of the data."""
    rng = np.random.default_rng(seed)
    assert suspicions(rng.standard_cauchy((600, 4)).__pow__(2).mean(axis=1)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0])
def test_stays_quiet_on_other_data(seed, factor):
    """A rise that stays is no bad batch; divergence judges it."""
    values = trained(400, seed=seed)
    values[200:] *= factor
    assert suspicions(values) == []


def test_stays_quiet_about_noise_of_a_loss_that_went_to_zero():
    rng = np.random.default_rng(0)
    values = np.maximum(np.exp(-np.arange(600) / 20), 1e-10) * np.exp(2 * rng.standard_normal(600))
    assert [step for step, _ in levels(seen(see, series(values))) if step > 300] == []
    values[200:] = noise(400, level=1e-10)
    values[500] *= 100
    assert [step for step, _ in levels(seen(see, series(values))) if step > 300] == []


def test_stays_quiet_below_the_first_losses():
    values = noise(300, level=0.05)
    values[:20] = 4.0
    values[200] = 1.0
    assert suspicions(values) == []


def test_stays_quiet_on_losses_that_change_their_sign():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(300)
    values[200] = 1e6
    assert seen(see, series(values)) == []


def test_stays_quiet_about_a_spike_that_comes_again_and_again():
    """A loss that is added in every hundredth step."""
    values = trained(1200)
    values[99::100] += 100.0
    assert len(suspicions(values)) <= 2


def test_stays_quiet_on_zeros_and_while_little_is_known():
    assert seen(see, series([0.0] * 100 + [5.0])) == []
    assert seen(see, series([2.0] * 40 + [1e6])) == []
    assert suspicions([*noise(200), 1e6]) == []


@given(st.floats(1e-6, 1e6), st.integers(0, 20))
def test_the_unit_of_the_loss_does_not_matter(unit, seed):
    values = trained(300, seed=seed)
    values[[280, 285]] = 70.0
    assert levels(seen(see, series(values))) == levels(seen(see, series(unit * values)))

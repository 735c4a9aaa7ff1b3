"""A loss that climbs and stays up; not noise, tails, warm-up, one spike, or numbers that are none.

A change of the data looks the same in the loss alone: that a sighting is only a suspicion, which the monitor settles
with earlier batches, is tested in tests/monitor (the control `domain-shift`).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.series import Series
from finitune.symptoms.divergence import see


def fired(values) -> list[int]:
    """The steps, from 1, at which it fires when the values come one by one."""
    series, out = Series(), []
    for step, value in enumerate(values, start=1):
        series.add(step, float(value))
        if see(series):
            out.append(step)
    return out


def falling(steps, *, noise=0.05, seed=0, start=4.0, end=2.0):
    """A healthy loss: it decays, with log-normal noise."""
    rng = np.random.default_rng(seed)
    trend = end + (start - end) * np.exp(-np.arange(steps) / (steps / 4))
    return trend * np.exp(noise * rng.standard_normal(steps))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.5, 2.0, 10.0])
def test_fires_soon_after_a_lasting_rise(seed, factor):
    values = falling(300, seed=seed)
    values[200:] *= factor
    steps = fired(values)
    assert steps
    assert 200 < steps[0] <= 225


@pytest.mark.parametrize("seed", range(5))
def test_fires_on_a_slow_climb(seed):
    values = falling(400, seed=seed)
    values[200:] *= np.exp(np.arange(200) / 60)
    steps = fired(values)
    assert steps
    assert 200 < steps[0] <= 260


def test_fires_early_in_a_run_after_three_steps_above_the_first_loss():
    assert fired([4.0, 3.9, 3.8, 9.0, 12.0, 40.0]) == [6]
    assert fired([4.0, 10.0, 30.0, 90.0]) == [4]


def test_fires_with_the_level_before():
    values = [4.0, 3.9, 3.8, 9.0, 12.0, 40.0]
    sighting = see(Series(range(1, 7), values))
    assert sighting.step == 6
    assert sighting.numbers == {"loss": 40.0, "before": 3.9}
    assert "40" in sighting.text


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_fires_on_a_rise_five_steps_after_a_value_that_is_no_number(bad):
    """NaN must not blind the window: it enters no baseline, and what follows is judged as before."""
    values = falling(300)
    values[195] = bad
    values[200:] *= 3
    clean = falling(300)
    clean[200:] *= 3
    steps, expected = fired(values), fired(clean)
    assert steps
    assert abs(steps[0] - expected[0]) <= 1
    early = [4.0, 3.9, bad, 3.8, 9.0, 12.0, 40.0]
    assert fired(early) == [7]


def test_fires_although_a_part_of_the_window_is_no_number():
    values = falling(300)
    values[100:190:2] = math.nan
    values[200:] *= 3
    assert fired(values)[0] <= 225


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_stays_quiet_on_healthy_noise(seed, noise):
    assert fired(falling(400, noise=noise, seed=seed)) == []


@pytest.mark.parametrize("seed", range(10))
def test_stays_quiet_on_heavy_tails(seed):
    """Student-t with 2 degrees of freedom in the logarithm: spikes of any size, none that lasts."""
    rng = np.random.default_rng(seed)
    values = falling(400, noise=0.0) * np.exp(0.05 * rng.standard_t(2, size=400))
    assert fired(values) == []


@pytest.mark.parametrize("height", [2, 100, 1e6])
@pytest.mark.parametrize("at", [5, 20, 60, 200])
def test_stays_quiet_on_one_spike_and_on_two(height, at):
    values = falling(300)
    values[at] *= height
    values[at + 1] *= height
    assert fired(values) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_stays_quiet_on_a_value_that_is_no_number(bad):
    values = falling(300)
    values[[3, 60, 61, 62, 200, 299]] = bad
    assert fired(values) == []
    assert fired([bad] * 100) == []


def test_stays_quiet_on_a_warm_up_and_a_first_peak():
    """The first steps of a fresh model often rise a little before they fall."""
    values = [10.8, 11.5, 12.4, 12.9, 12.0, 11.0, *(10.0 * 0.98 ** np.arange(200))]
    assert fired(values) == []


def test_stays_quiet_on_a_plateau_of_equal_values():
    assert fired([2.0] * 300) == []
    assert fired([0.0] * 300) == []


def test_stays_quiet_on_a_loss_that_is_no_logarithm():
    """DPO margins and the like may be negative; a logarithm of them says nothing."""
    assert fired(-falling(300)) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_on_the_loss_of_policy_gradients(seed):
    """Signs change by chance, or the loss rises from zero as the policy leaves its reference."""
    rng = np.random.default_rng(seed)
    assert fired(1e-5 * rng.standard_normal(300) * np.exp(2 * rng.standard_normal(300))) == []
    assert fired(np.concatenate([[0.0], 1e-9 * np.exp(np.arange(250) / 15)])) == []


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200))
def test_takes_whatever_numbers_come_and_says_a_finite_level(values):
    series = Series(range(1, len(values) + 1), values)
    sighting = see(series)
    if sighting is not None:
        assert sighting.step == len(values)
        assert sighting.numbers["loss"] == values[-1]
        assert math.isfinite(sighting.numbers["before"])


@given(st.integers(0, 300))
def test_the_window_is_the_state(cut):
    """The same answer live, on a recording and on a log: only the series counts, not how it came about."""
    values = falling(300)
    values[150:] *= 2
    live, whole = Series(), Series(range(1, 301), values)
    for step in range(1, cut + 1):
        live.add(step, values[step - 1])
    assert see(live) == see(whole.until(cut))

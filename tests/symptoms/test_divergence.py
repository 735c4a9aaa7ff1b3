"""A loss that climbs and stays up; not noise, tails, warm-up, one spike, or numbers that are none.

A change of the data looks the same in the loss alone, so no sighting is an incident: that the monitor settles it with
earlier batches is tested in tests/monitor (the control `domain-shift`).
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


def suspicions(values) -> list[int]:
    series, out = Series(), []
    for step, value in enumerate(values, start=1):
        series.add(step, float(value))
        sighting = see(series)
        assert sighting is None or sighting.level in ("note", "suspicion")
        if sighting is not None and sighting.level == "suspicion":
            assert sighting.confirm
            out.append(step)
    return out


def runaway(steps, at, *, start=1.9, seed=0):
    """From `start` a little down, at step `at` to 170,000 and on to 1e8, where it stays."""
    values = falling(steps, start=start, end=1.5, seed=seed)
    values[at : at + 4] = [40.0, 3e3, 1.7e5, 9e6]
    values[at + 4 :] = 1e8 * np.exp(0.1 * np.random.default_rng(seed).standard_normal(steps - at - 4))
    return values


@pytest.mark.parametrize("at", [6, 30, 60, 200])
def test_fires_on_a_loss_that_goes_to_a_hundred_million_and_stays(at):
    steps = suspicions(runaway(1000, at))
    assert at < steps[0] <= at + 32
    assert steps[-1] == 1000, "and goes on to say so, for who looks at the end of a log"


@pytest.mark.parametrize("seed", range(5))
def test_fires_with_a_suspicion_where_the_loss_is_back_at_the_beginning(seed):
    values = falling(400, seed=seed, start=5.0, end=1.5)
    values[:4] = 5.0
    values[250:] = 4.9 * np.exp(0.05 * np.random.default_rng(seed).standard_normal(150))
    steps = suspicions(values)
    assert steps
    assert 250 < steps[0] <= 280


@pytest.mark.parametrize("seed", range(3))
def test_fires_on_a_climb_too_slow_for_its_window(seed):
    """Over thousands of steps from 1.5 back to 5, where it began."""
    values = falling(600, seed=seed, start=5.0, end=1.5)
    values[:4] = 5.0
    climb = (
        1.5
        * np.exp(np.minimum(np.arange(6000) / 4000, 1.25))
        * np.exp(0.05 * np.random.default_rng(seed).standard_normal(6000))
    )
    series = Series(range(1, 6601), [float(value) for value in [*values, *climb]])
    assert see(series.until(600)) is None
    assert see(series).level == "suspicion"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.3, 1.6, 2.2])
def test_stays_below_a_suspicion_on_harder_data(seed, factor):
    """Parts of a data set one after another, fine-tuned from 1.8 to 1.3; and a curriculum that gets harder slowly."""
    values = falling(900, seed=seed, start=1.8, end=1.3)
    values[300:600] *= factor
    assert suspicions(values) == []
    slowly = falling(900, seed=seed, start=1.8, end=1.3) * np.linspace(1, factor, 900)
    assert suspicions(slowly) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_below_a_suspicion_on_data_sorted_by_source(seed):
    levels = np.repeat([1.3, 0.6, 1.9, 1.1, 2.2, 0.4], 200)
    assert suspicions(levels * np.exp(0.12 * np.random.default_rng(seed).standard_normal(1200))) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_below_a_suspicion_on_another_language_that_is_learned(seed):
    values = falling(400, seed=seed, start=4.8, end=1.6)
    values[200:] += 5.3 * np.exp(-np.arange(200) / 12)
    assert suspicions(values) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_on_noise_about_zero(seed):
    """From 1 to 1e-10: a thousand times more of nothing is nothing."""
    rng = np.random.default_rng(seed)
    values = np.maximum(np.exp(-np.arange(600) / 20), 1e-10) * np.exp(2 * rng.standard_normal(600))
    values[400:] *= 1e4
    assert suspicions(values) == []
    assert [step for step in fired(values) if step > 48] == []


@pytest.mark.parametrize("seed", range(3))
def test_stays_below_a_suspicion_on_losses_that_are_meant_to_rise(seed):
    """Of a value function as rewards are found; of one of two adversaries."""
    noise = np.exp(0.3 * np.random.default_rng(seed).standard_normal(900))
    assert suspicions(0.05 * np.exp(np.minimum(np.arange(900) / 200, 3.5)) * noise) == []
    assert suspicions(np.linspace(0.7, 5.0, 900) * noise) == []


@pytest.mark.parametrize("seed", range(3))
def test_fires_on_a_loss_of_either_sign_that_runs_away(seed):
    rng = np.random.default_rng(seed)
    values = -1.0 + 0.3 * rng.standard_normal(400)
    values[200:] -= np.exp(np.arange(200) / 6)
    steps = suspicions(values)
    assert steps
    assert 200 < steps[0] <= 260


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_fires_on_a_loss_of_either_sign_that_goes_beyond_any_data_early(sign):
    """An actor and its critic, whose rate has no bound: within ten steps, and the first 48 are not over."""
    calm = np.random.default_rng(0).standard_normal(35)
    losses = [*calm, *(sign * 10.0**power for power in (0, 1, 3, 6, 9, 11, 13, 15))]
    assert suspicions(losses) == [42, 43]
    assert suspicions(losses[:-3]) == []


@pytest.mark.parametrize("seed", range(3))
def test_stays_quiet_on_a_free_energy_that_is_annealed(seed):
    """A variational free energy falls at once where the temperature does; and fires where it climbs as far."""
    values = -1150 + 20 * np.random.default_rng(seed).standard_normal(400)
    values[150:] -= 4900
    assert suspicions(values) == []
    assert suspicions(values[::-1])


@pytest.mark.parametrize("seed", range(3))
def test_stays_quiet_where_a_sampler_finds_the_mode(seed):
    """Its potential falls from a start of little noise to a level far below zero, and stays there."""
    noise = np.random.default_rng(seed).standard_normal(400)
    values = np.where(np.arange(400) < 80, 8.6 + 0.01 * noise, -840 + 8 * noise)
    values[80:84] = [-200, -440, -700, -820]
    assert suspicions(values) == []
    values[80:100] = [-160, -660, -400, -820, -720, -580, -700, *[-850] * 6, *[8.6] * 7]
    assert suspicions(values) == []


@pytest.mark.parametrize("seed", range(3))
def test_stays_quiet_on_a_likelihood_of_densities_as_it_passes_zero(seed):
    rng = np.random.default_rng(seed)
    values = -3 + 60 * np.exp(-np.arange(600) / 60) + 0.1 * rng.standard_normal(600)
    assert fired(values) == []


@given(st.floats(1e-3, 1e6), st.integers(0, 10))
def test_the_unit_of_the_loss_does_not_matter(unit, seed):
    values = falling(300, seed=seed, start=5.0, end=1.5)
    values[:4] = 5.0
    values[200:] *= 4
    one, other = Series(range(1, 301), values), Series(range(1, 301), unit * values)
    for step in (215, 230, 260, 300):
        first, second = see(one.until(step)), see(other.until(step))
        assert (first is None) == (second is None)
        assert first is None or first.level == second.level


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


def test_stays_quiet_at_a_step_whose_own_loss_is_at_the_level():
    losses = np.where(np.arange(200) < 20, 8.0, 0.005) * np.exp(np.random.default_rng(0).normal(0, 0.1, 200))
    losses[160:] = 0.05
    assert see(Series(range(1, 201), losses)) is not None
    losses[199] = 0.004
    assert see(Series(range(1, 201), losses)) is None


@pytest.mark.parametrize("period", [2, 7, 12])
def test_fires_on_swings_that_grow(period):
    steps = np.arange(64)
    values = 0.3 * 1.25**steps * np.cos(2 * np.pi * steps / period)
    assert fired(values)
    assert not fired(0.3 * np.cos(2 * np.pi * steps / period))


def test_stays_quiet_on_values_that_grow_to_one_side():
    """The loss of an actor is the value that its critic expects, with the sign changed."""
    steps = np.arange(96)
    assert not fired(0.05 - 0.01 * 1.1**steps + 0.02 * np.random.default_rng(0).standard_normal(96))


@pytest.mark.parametrize("seed", range(20))
def test_stays_quiet_on_heavy_tails_about_zero(seed):
    assert not fired(0.05 * np.random.default_rng(seed).standard_t(2, 400))


@pytest.mark.parametrize("fall", [0.3, 0.5])
def test_stays_quiet_where_each_of_several_targets_is_fitted_from_far_away(fall):
    """As in fitted Q iteration, whose target is replaced every 20 steps: the loss falls a thousandfold each time."""
    values = np.concatenate([3e4 * fall ** np.arange(20), *(1e5 * 0.7 ** np.arange(20) for _ in range(5))])
    assert not suspicions(values)


def test_what_runs_away_is_suspicious_early_however_steadily_it_does():
    values = [1.0] * 20 + [2.5**n for n in range(25)]
    series = Series(range(1, 46), values)
    assert see(series.until(24)).level == "note"
    assert see(series.until(30)).level == "suspicion"
    assert see(series).level == "suspicion"


@pytest.mark.parametrize(("joined", "expected"), [((1,), True), ((1, 9), False), ((1, 5), True)])
def test_another_loss_begins_where_tensors_have_gradients_that_never_had(joined, expected):
    """As where a term is added: what it raises the loss by is no climb. It may diverge afterwards as well."""
    loss = Series(range(1, 15), [0.13, 0.12, 0.1, 0.09, 0.09, 0.08, 0.07, 0.05, *[1.35] * 6])
    trained = Series(joined, [4.0, 8.0][: len(joined)])
    found = [see(loss.until(step), trained.until(step)) for step in range(2, 15)]
    assert any(one is not None and one.level == "suspicion" for one in found) is expected


def test_one_step_of_another_loss_is_no_level():
    """As where the generator of a GAN steps for the first time, after three steps of its critic."""
    loss = Series(range(1, 11), [8.45, 8.5, 8.47, 0.09, 7.99, 8.05, 7.81, 7.92, 7.9, 7.86])
    trained = Series([1, 4], [5.0, 9.0])
    assert [see(loss.until(step), trained.until(step)) for step in range(2, 11)] == [None] * 9


LATE = [68.0, 54, 62, 68, 65, 60, 53, 70, 20, 3.2, 6, 38, 71, 177, 165, 433, 329, 475, 456, 272, 233, 125, 31, 53, 118,
        406, 982, 973, 1481, 1898, 1647, 2232, 1717, 1483]  # fmt: skip
GUESSED = [1.099] * 16 + [1.13, 1.08, 0.98, 0.6, 0.74, 4, 3.3, 4.7, 2.4, 1.8, 1.6, 6.5, 5.9, 8.7, 28, 24, 26, 48, 26,
           90, 74, 85]  # fmt: skip


STAGES = [0.05, 0.04, 0.01, 0.0, 0.02, 0.0, 0.4, 0.3, 0.08, 0.04, 1.6, 1.5, 1.3, 0.2, 0.7, 0.01, 0.0, 6.7, 5.5, 5.7,
          4.5, 1.8, 0.4, 39, 37, 32, 29, 27, 23, 18, 6, 9, 6, 5, 2, 0.2, 0.0]  # fmt: skip


@pytest.mark.parametrize(("losses", "suspected"), [
    (LATE, True),
    (GUESSED, True),
    ([max(value, 20) for value in LATE], False),  # it never fell to a quarter of its beginning
    ([value if value > 1 else 1.1 for value in GUESSED], False),
    (GUESSED[:24], False),  # up for three steps alone
    (STAGES, False),  # each time it learns what a margin four times as large asks for
])  # fmt: skip
def test_an_early_climb_that_stays_is_a_suspicion_where_the_loss_had_fallen(losses, suspected):
    loss = Series(range(1, len(losses) + 1), losses)
    found = [see(loss.until(step)) for step in range(2, len(losses) + 1)]
    assert any(one is not None and one.level == "suspicion" for one in found) is suspected


def test_swings_that_grow_are_no_stages():
    """They come back from where they went, step by step, and go further."""
    losses = [19.9, 3.2, 6.1, 38.4, 71, 177, 165, 433, 329, 475, 456, 272, 233, 125, 31, 53, 118, 406, 982, 973,
              1482, 1898, 1647, 2232, 1717]  # fmt: skip
    loss = Series(range(1, len(losses) + 1), losses)
    assert see(loss).level == "suspicion"


def test_fires_early_on_a_climb_that_never_fell():
    """From the first step the rate is raised without an end: too slow a climb for any three steps in a row."""
    values = [3.0, 2.0, 4.7, 1.3, 3.5, 2.3, 2.8, 3.5, 43.0, 97.0, 900.0, 290.0, 12e3, 10e3, 7e3, 14e3, 4e3, 20e3, 58e3]
    assert suspicions(values)
    assert not suspicions([*values[:8], *[2e3] * 2, *[2.5] * 4, *[2e3] * 9])  # a loss that comes in stages

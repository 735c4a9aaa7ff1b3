"""Updates that vanish though there are gradients; not a schedule that ends, and not a model that has converged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import NAN, noise, seen, series

from finitune.series import Series
from finitune.symptoms.dead_update import see

EVERY, SAMPLES = 16, 30


def fired(ratios, *, rates=None, norms=None):
    steps = EVERY * len(ratios)
    rates = [1e-3] * steps if rates is None else rates
    norms = noise(steps) if norms is None else norms
    return [s.step for s in seen(see, series(ratios, every=EVERY), lr=series(rates), grad_norm=series(norms))]


def test_fires_at_the_second_sample_without_an_update():
    ratios = noise(SAMPLES, level=1e-3)
    ratios[20:] = 0.0
    assert fired(ratios)[0] == EVERY * 22
    assert fired([1e-9] * 4)[0] == EVERY * 2, "from the start"


def test_fires_where_the_update_fell_to_a_hundredth():
    ratios = noise(SAMPLES, level=1e-3)
    ratios[20:] /= 100
    assert fired(ratios)[0] == EVERY * 22


def test_fires_where_the_norms_of_before_were_forgotten():
    """After an outlier the history of the gradient norm begins anew."""
    ratios = noise(SAMPLES, level=1e-3)
    ratios[20:] /= 100
    steps = EVERY * 22
    kept = Series(range(EVERY * 18, steps + 1), noise(steps + 1 - EVERY * 18))
    assert see(series(ratios[:22], every=EVERY), series([1e-3] * steps), kept).step == steps


def test_fires_with_the_rate_and_the_norm():
    sighting = see(series([1e-9] * 3, every=EVERY), series([1e-3] * 48), series([2.0] * 48))
    assert sighting.numbers == {"update_ratio": 1e-9, "lr": 1e-3, "grad_norm": 2.0}
    assert sighting.confirm


def test_stays_quiet_as_the_rate_goes_to_zero():
    steps = EVERY * SAMPLES
    rates = 1e-3 * np.linspace(1, 0, steps)
    ratios = rates[EVERY - 1 :: EVERY]
    assert fired(ratios, rates=rates) == []


def test_stays_quiet_as_the_gradient_of_sgd_goes_to_zero():
    norms = np.exp(-np.arange(EVERY * SAMPLES) / 20)
    assert fired(1e-3 * norms[EVERY - 1 :: EVERY], norms=norms) == []


def test_stays_quiet_as_the_gradient_of_adam_goes_below_its_eps():
    norms = np.exp(-np.arange(EVERY * SAMPLES) / 12)
    sampled = norms[EVERY - 1 :: EVERY]
    assert fired(1e-3 * sampled / (sampled + 1e-8), norms=norms) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_on_noise_skipped_steps_and_numbers_that_are_none(seed):
    ratios = noise(SAMPLES, level=1e-3, spread=0.5, seed=seed)
    assert fired(ratios) == []
    ratios[[5, 12]] = 0.0
    ratios[[8, 20]] = NAN
    assert fired(ratios) == []
    assert fired([NAN] * 5) == []
    assert fired([0.0] * 5, norms=[0.0] * 80) == [], "no gradient: that is zero-gradient"
    assert fired([0.0] * 5, rates=[0.0] * 80) == []


def test_stays_quiet_as_an_optimizer_with_step_sizes_of_its_own_converges():
    """Rprop shrinks its steps by itself, whatever the rate and the gradient."""
    fall = np.maximum(np.exp(-np.arange(SAMPLES) / 2), 1e-5)
    norms = np.maximum(np.exp(-np.arange(EVERY * SAMPLES) / 20), 1e-3)
    assert fired(1e-2 * fall, norms=norms) == []

"""Updates that are several times larger at once; not as the rate or the gradient of SGD is."""

from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import NAN, noise, seen, series

from finitune.symptoms.update_jump import see

EVERY, SAMPLES = 16, 30


def fired(ratios, *, rates=None, norms=None):
    steps = EVERY * len(ratios)
    rates = [1e-3] * steps if rates is None else rates
    norms = noise(steps) if norms is None else norms
    return [s.step for s in seen(see, series(ratios, every=EVERY), lr=series(rates), grad_norm=series(norms))]


@pytest.mark.parametrize("seed", range(5))
def test_fires_at_the_first_sample_of_larger_updates(seed):
    ratios = noise(SAMPLES, level=1e-3, seed=seed)
    ratios[20:] *= 6
    assert fired(ratios)[0] == EVERY * 21


def test_fires_as_the_rate_falls_and_past_a_sample_that_is_no_number():
    rates = 1e-3 * np.linspace(1, 0.1, EVERY * SAMPLES)
    ratios = rates[EVERY - 1 :: EVERY].copy()
    ratios[18] = NAN
    ratios[20] *= 6
    assert fired(ratios, rates=rates) == [EVERY * 21]


def test_stays_quiet_as_the_rate_grows():
    rates = 1e-4 * np.exp(np.arange(EVERY * SAMPLES) / 60)
    assert fired(rates[EVERY - 1 :: EVERY], rates=rates) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_as_the_gradient_of_sgd_varies(seed):
    norms = noise(EVERY * SAMPLES, spread=1.0, seed=seed)
    assert fired(1e-3 * norms[EVERY - 1 :: EVERY], norms=norms) == []


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_on_a_tensor_that_goes_to_zero(seed):
    ratios = 1e-3 * np.exp(2.0 * np.random.default_rng(seed).standard_normal(SAMPLES))
    assert fired(ratios) == []


def test_stays_quiet_while_little_is_known():
    assert fired([1e-3] * 6 + [1.0]) == []
    assert fired([0.0] * 20) == []
    assert fired([NAN] * 20) == []

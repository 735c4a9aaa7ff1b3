"""A gradient norm that rises and stays; not spikes, not a slow growth, and not a warm-up."""

from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import INF, NAN, noise, seen, series

from finitune.symptoms.grad_norm_rise import RECENT, see


def fired(values):
    return [sighting.step for sighting in seen(see, series(values))]


@pytest.mark.parametrize("seed", range(5))
def test_fires_soon_after_a_lasting_rise(seed):
    values = noise(400, spread=0.2, seed=seed)
    values[200:] *= 8
    assert 200 < fired(values)[0] <= 200 + RECENT


def test_fires_on_gradients_that_add_up():
    """Sums of random gradients grow with the square root of their number, of equal ones with the number."""
    rng = np.random.default_rng(0)
    sums = np.cumsum(rng.standard_normal((200, 10)) + 0.3, axis=0)
    values = [*noise(200, level=3.0, spread=0.2), *np.linalg.norm(sums, axis=1)]
    assert fired(values)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_fires_although_some_norms_are_no_numbers(bad):
    values = noise(400, spread=0.2)
    values[200:] *= 8
    values[[150, 195, 205]] = bad
    assert 200 < fired(values)[0] <= 210 + RECENT


@pytest.mark.parametrize("seed", range(10))
def test_stays_quiet_on_noise_and_spikes(seed):
    rng = np.random.default_rng(seed)
    assert fired(np.exp(0.5 * rng.standard_t(2, size=600))) == []


def test_stays_quiet_on_slow_growth_and_on_what_the_run_began_with():
    assert fired(np.exp(np.arange(2000) / 500)) == []
    values = noise(400, spread=0.2)
    values[:10] = 30.0
    values[200:] *= 8
    assert fired(values) == []


def test_stays_quiet_on_zeros():
    assert fired([0.0] * 300) == []
    assert fired([NAN] * 300) == []

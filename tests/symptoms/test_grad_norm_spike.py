"""One gradient norm far above the others; not heavy tails, and not what the run began with."""

from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import INF, NAN, levels, noise, seen, series

from finitune.symptoms.grad_norm_spike import see


def suspicions(values):
    return [sighting.step for sighting in seen(see, series(values)) if sighting.level == "suspicion"]


@pytest.mark.parametrize("seed", range(5))
def test_fires_at_a_norm_far_above_all(seed):
    values = noise(350, seed=seed, spread=0.2)
    values[299] *= 100
    assert suspicions(values) == [300]


@pytest.mark.parametrize("seed", range(5))
def test_fires_as_a_note_where_it_is_merely_rare(seed):
    values = noise(350, seed=seed, spread=0.2)
    values[299] = 12.0
    assert (300, "note") in levels(seen(see, series(values)))
    assert suspicions(values) == []


@pytest.mark.parametrize("bad", [NAN, INF])
def test_fires_five_steps_after_a_norm_that_is_no_number(bad):
    values = noise(350, spread=0.2)
    values[294] = bad
    values[299] *= 100
    assert suspicions(values) == [300]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("power", [1.0, 1.5, 3.0])
def test_stays_quiet_on_heavy_tails(seed, power):
    """Norms with a tail of a power, at 1 without a mean: a factor of a thousand is within it."""
    rng = np.random.default_rng(seed)
    assert suspicions(1 + rng.pareto(power, size=600)) == []


@pytest.mark.parametrize("seed", range(10))
def test_stays_quiet_on_noise(seed):
    assert suspicions(noise(600, seed=seed, spread=0.5)) == []


def test_stays_quiet_about_what_the_run_began_with():
    values = noise(700, level=0.5, spread=0.2)
    values[:20] = 50.0
    values[650] = 40.0
    assert suspicions(values) == []
    values[:20] = 0.5
    assert suspicions(values) == [651]


@pytest.mark.parametrize("value", [0.0, NAN, INF, -1.0])
def test_stays_quiet_on_what_has_no_logarithm(value):
    assert see(series([*noise(100), value])) is None
    assert see(series([value] * 100)) is None

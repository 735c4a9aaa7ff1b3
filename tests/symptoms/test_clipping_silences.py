from __future__ import annotations

import pytest
from tests.symptoms.runs import INF, NAN, noise, seen, series

from finitune.symptoms.clipping_silences import LONG, SUDDEN, see


def fired(factors):
    return [sighting.step for sighting in seen(see, series(factors))]


def test_fires_where_nothing_was_ever_left():
    assert fired(noise(60, level=1e-8))[0] == LONG


def test_fires_soon_after_clipping_became_absurd():
    assert fired([*noise(100, level=0.3), *noise(20, level=1e-9)])[0] == 100 + SUDDEN


@pytest.mark.parametrize("level", [1.0, 1e-2, 1e-4])
def test_stays_quiet_on_the_clipping_of_long_sums(level):
    assert fired(noise(200, level=level, spread=1.0)) == []


@pytest.mark.parametrize("value", [NAN, INF, 0.0])
def test_stays_quiet_about_steps_that_are_not_finite(value):
    """An infinite norm clips everything to zero: that is nonfinite-gradient."""
    assert fired([*noise(50, level=0.5), *[value] * 50]) == []


def test_stays_quiet_on_a_few_spikes():
    factors = noise(200, level=0.5)
    factors[[100, 102, 150]] = 1e-7
    assert fired(factors) == []


@pytest.mark.parametrize(("last", "expected"), [(1e9, [LONG]), (0.95e9, [LONG]), (2e8, [])])
def test_stays_quiet_where_the_loss_falls_all_the_same(last, expected):
    """Targets in the thousands, and squared errors that are summed."""
    losses = noise(LONG, level=1e9, spread=0.02) * [1 + (last / 1e9 - 1) * n / LONG for n in range(LONG)]
    factors = noise(LONG, level=1e-8)
    assert [one.step for one in [see(series(factors), series(losses))] if one] == expected

import math

import pytest

from finitune.series import Series
from finitune.symptoms.nonfinite_gradient import see


def series(*values, first=1):
    return Series(range(first, first + len(values)), values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [(), (2.0, 1.9), (math.nan, 1.9)])
def test_fires_on_the_newest_step_with_the_value(value, before):
    sighting = see(series(*before, value, first=7))
    assert sighting.step == 7 + len(before)
    assert str(value) in sighting.text
    assert str(sighting.numbers["grad_norm"]) == str(value)


@pytest.mark.parametrize("value", [0.0, 1e308, 5e-324])
@pytest.mark.parametrize("before", [(), (2.0,), (math.nan,), (math.inf, math.nan)])
def test_stays_quiet_about_any_finite_newest_step(value, before):
    assert see(series(*before, value)) is None


def test_fires_as_an_incident_unless_a_scaler_discards_it():
    """A scaler finds its scale by overflows; at a scale of 1, or with the loss, it is none of them."""
    norm, loss, lost = series(math.inf), series(2.0), series(math.nan)
    skipped, taken, scale, none = series(1.0), series(0.0), series(2.0**16), series(1.0)
    assert see(norm).level == "incident"
    assert see(norm, loss, scale, skipped).level == "note"
    assert see(norm, None, scale, skipped).level == "note"
    assert see(norm, loss, scale, taken).level == "incident"
    assert see(norm, lost, scale, skipped).level == "incident"
    assert see(norm, loss, none, skipped).level == "incident"
    assert see(norm, loss, None, skipped).level == "incident"

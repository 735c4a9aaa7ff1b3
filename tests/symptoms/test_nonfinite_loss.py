import math

import pytest

from finitune.series import Series
from finitune.symptoms.nonfinite_loss import see


def series(*values, first=1):
    return Series(range(first, first + len(values)), values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [(), (2.0, 1.9), (math.nan, 1.9), (0.0,)])
def test_fires_on_the_newest_step_with_the_value(value, before):
    sighting = see(series(*before, value, first=7))
    assert sighting.step == 7 + len(before)
    assert str(value) in sighting.text
    assert str(sighting.numbers["loss"]) == str(value)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e308, 5e-324])
@pytest.mark.parametrize("before", [(), (2.0,), (math.nan,), (math.inf, math.nan)])
def test_stays_quiet_about_any_finite_newest_step(value, before):
    assert see(series(*before, value)) is None

import math

import pytest

from finitune.series import Series
from finitune.symptoms.wrong_reduction import see

STEPS = Series([1, 2, 3], [0.0, 0.0, 0.0])


def test_fires_where_the_newest_step_was_looked_at_and_is_off():
    sighting = see(Series([1, 3], [0.001, 0.43]), STEPS)
    assert sighting.step == 3
    assert "43%" in sighting.text


@pytest.mark.parametrize("error", [Series([1, 3], [0.9, 0.004]), Series([1, 2], [0.0, 0.9]), Series([3], [math.nan])])
def test_stays_quiet_about_rounding_and_about_steps_that_are_over(error):
    assert see(error, STEPS) is None

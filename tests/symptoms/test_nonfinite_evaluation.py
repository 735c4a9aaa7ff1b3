import math

import pytest

from finitune.series import Series
from finitune.symptoms.nonfinite_evaluation import review


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_fires_at_the_first_loss_that_is_not_finite(bad):
    sighting = review(Series([10, 20, 30], [2.0, bad, bad]))
    assert sighting.step == 20
    assert str(bad) in sighting.text


@pytest.mark.parametrize("losses", [[], [2.0], [0.0, 0.0, 1e9], [-1.0, 3.0]])
def test_stays_quiet_on_any_finite_loss(losses):
    assert review(Series(range(len(losses)), losses)) is None

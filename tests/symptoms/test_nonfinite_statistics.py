"""Running statistics that are lost are said; a run that has lost none is not."""

from __future__ import annotations

import pytest
from tests.symptoms.runs import seen, series

from finitune.symptoms.nonfinite_statistics import see


@pytest.mark.parametrize(("count", "words"), [(1.0, "1 batch norm are"), (3.0, "3 batch norms are")])
def test_fires_at_the_step_that_has_lost_them(count, words):
    (found,) = seen(see, series([0.0, 0.0, count]))
    assert (found.step, found.level) == (3, "suspicion")
    assert words in found.text
    assert found.numbers == {"lost_statistics": count}


def test_stays_quiet_where_none_is_lost():
    assert not seen(see, series([0.0] * 5))

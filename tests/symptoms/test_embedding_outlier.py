from __future__ import annotations

import pytest
from tests.symptoms.runs import INF, NAN, seen, series

from finitune.symptoms.embedding_outlier import see


def fired(ratios):
    return [sighting.step for sighting in seen(see, series(ratios, every=64))]


def test_fires_where_a_row_grew_at_once():
    assert fired([1.3, 1.4, 700.0, 700.0]) == [192]


def test_fires_at_a_thousand_from_the_first_measurement():
    assert fired([5e3]) == [64]
    assert fired([1.3, INF]) == [128]


@pytest.mark.parametrize("ratios", [[1.2, 2, 4, 8, 14, 22, 30], [300.0, 310.0], [1.2, 7.0], [NAN, 2.0], [NAN]])
def test_stays_quiet_on_rows_that_grow_by_and_by_or_are_as_they_were(ratios):
    assert fired(ratios) == []

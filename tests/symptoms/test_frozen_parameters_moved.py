from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, levels, seen, series

from finitune.symptoms.frozen_parameters_moved import see


def test_fires_as_a_suspicion_and_the_second_time_as_an_incident():
    assert levels(seen(see, series([0, 0, 21, 21, 0, 3], every=64))) == [
        (192, "suspicion"),
        (256, "incident"),
        (384, "suspicion"),
    ]


@pytest.mark.parametrize("counts", [[0], [0] * 5, [NAN]])
def test_stays_quiet_where_what_is_frozen_stays(counts):
    assert seen(see, series(counts, every=64)) == []

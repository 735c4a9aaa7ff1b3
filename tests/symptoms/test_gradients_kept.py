from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.symptoms.gradients_kept import see


def fired(shares):
    return [sighting.step for sighting in seen(see, series(shares))]


def test_fires_at_every_step_that_was_taken_with_old_gradients():
    assert fired([0, 0, 1, 0.5, 0]) == [3, 4]


@pytest.mark.parametrize("shares", [[0] * 10, [NAN] * 6])
def test_stays_quiet_where_gradients_are_zeroed(shares):
    assert fired(shares) == []

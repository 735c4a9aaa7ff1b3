from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.symptoms.zero_gradient import IN_A_ROW, see


def fired(norms, losses):
    return [sighting.step for sighting in seen(see, series(norms), loss=series(losses))]


def test_fires_after_eight_steps_without_any_gradient():
    assert fired([1.0, 0.5, *[0] * 9], [2.0] * 11) == [10, 11]
    assert fired([0.0] * IN_A_ROW, [NAN] * IN_A_ROW) == [IN_A_ROW]


@pytest.mark.parametrize(
    ("norms", "losses"),
    [
        ([1.0, 0, 0, 0, 1.0, 0, 0, 0], [2.0] * 8),  # a batch that gives none now and then
        ([0.0] * 8, [0.0] * 8),  # zero-loss
        ([1e-30] * 8, [2.0] * 8),
        ([NAN] * 8, [2.0] * 8),
        ([0.0] * 7, [2.0] * 7),
    ],
)
def test_stays_quiet(norms, losses):
    assert fired(norms, losses) == []

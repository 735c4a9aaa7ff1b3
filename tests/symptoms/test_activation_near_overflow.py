from __future__ import annotations

import pytest
from tests.symptoms.runs import INF, NAN, levels, seen, series

from finitune.symptoms.activation_near_overflow import see


def said(peaks, scale=1024.0):
    return levels(seen(see, series(peaks, every=64), loss_scale=series([scale] * 64 * len(peaks))))


def test_fires_below_one_bit_of_headroom_and_notes_below_three():
    assert said([100.0, 9000.0, 40000.0]) == [(128, "note"), (192, "suspicion")]


def test_stays_quiet_with_headroom():
    assert said([100.0, 2000.0, 8000.0]) == []


@pytest.mark.parametrize("peaks", [[1e6, 40000.0], [NAN], [INF], [0.0]])
def test_stays_quiet_on_what_is_not_float16_or_no_number(peaks):
    """A finite peak above 65504 was not computed in float16, whatever the loss is scaled by."""
    assert said(peaks) == []


def test_stays_quiet_where_the_loss_is_not_scaled():
    assert said([40000.0], scale=NAN) == []

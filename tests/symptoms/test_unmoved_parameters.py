from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.symptoms.unmoved_parameters import see


def fired(counts, ratio=1e-3, norms=None):
    steps = 16 * len(counts)
    norms = [1.0] * steps if norms is None else norms
    return [
        sighting.step
        for sighting in seen(
            see,
            series(counts, every=16),
            update_ratio=series([ratio] * len(counts), every=16),
            grad_norm=series(norms),
        )
    ]


def test_fires_in_the_third_sample():
    assert fired([0, 5, 5, 5, 4]) == [64, 80]


@pytest.mark.parametrize("counts", [[0] * 5, [3, 0, 2, 1, 0, 1, 1], [NAN] * 4, [7, 7]])
def test_stays_quiet_on_tensors_that_move_now_and_then(counts):
    assert fired(counts) == []


def test_stays_quiet_in_a_long_warm_up_and_in_a_model_that_has_converged():
    assert fired([5] * 4, ratio=4e-7) == []
    assert fired([0] * 4 + [5] * 6, norms=np.exp(-np.arange(160) / 8)) == []

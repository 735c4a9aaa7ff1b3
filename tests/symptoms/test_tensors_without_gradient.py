from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.series import Series
from finitune.symptoms.tensors_without_gradient import LONG, SHORT, see


def fired(shares):
    return [sighting.step for sighting in seen(see, series(shares))]


def test_fires_when_a_part_has_lost_its_gradient():
    assert fired([0.0] * 60 + [0.25] * 20)[0] == 60 + LONG
    assert fired([0.0, 0.1] * 100 + [0.25] * 20)[0] == 200 + LONG


def test_fires_at_the_second_step_where_nothing_ever_changed():
    assert fired([0.1] * 300 + [0.25] * 20)[0] == 300 + SHORT


@pytest.mark.parametrize("seed", range(5))
def test_stays_quiet_on_experts_that_come_and_go(seed):
    shares = np.random.default_rng(seed).integers(0, 7, 600) / 10
    assert fired(shares) == []


@pytest.mark.parametrize(
    "shares",
    [
        [0.5] + [0.0] * 100,  # adapters whose second factor begins at zero
        [0.3] * 200,  # heads that are not used
        [0.0] * 60 + [0.3] * 7 + [0.0] * 40,
        [0.0] * 60 + [1.0] * 20,  # zero-gradient
        [0.0] * 10 + [0.3] * 200,  # frozen soon after the beginning
        ([0.0] * 200 + [0.4]) * 3,  # a batch without pictures
        [0.0] * 60 + [0.4] + [0.0] * 300 + [0.4] * 2 + [0.0] * 20,  # a minibatch of which every ratio is clipped
        [NAN] * 100,
    ],
)
def test_stays_quiet(shares):
    assert fired(shares) == []


def test_stays_quiet_when_the_next_model_is_trained():
    """Of an optimizer that also holds a copy of the model, which is not trained."""
    shares = series([0.0] * 60 + [0.5] * 100)
    assert seen(see, shares)
    assert seen(see, shares, trained_tensors=Series([1, 61], [8, 16])) == []

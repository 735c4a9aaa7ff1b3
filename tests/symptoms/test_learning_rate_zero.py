from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.symptoms.learning_rate_zero import IN_A_ROW, see


def fired(rates):
    return [sighting.step for sighting in seen(see, series(rates))]


def test_fires_when_training_goes_on_after_the_schedule():
    assert fired([1e-3] * 10 + [0.0] * 40)[0] == 10 + IN_A_ROW


@pytest.mark.parametrize("rates", [[0.0, 1e-3, 2e-3], [1e-3] * 50 + [0.0], [1e-9] * 50, [NAN] * 50, [0.0] * 100])
def test_stays_quiet_on_a_first_and_a_last_step_of_zero(rates):
    assert fired(rates) == []

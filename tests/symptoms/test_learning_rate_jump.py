from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import INF, NAN, seen, series

from finitune.symptoms.learning_rate_jump import see


def fired(rates):
    return [sighting.step for sighting in seen(see, series(rates))]


@pytest.mark.parametrize("factor", [10, 30])
def test_fires_at_the_step_of_the_jump(factor):
    assert fired([1e-4] * 200 + [factor * 1e-4] * 50) == [201]


STEPS = np.arange(600)
COSINE = 0.5 * (1 + np.cos(np.pi * (STEPS % 200) / 200))
SCHEDULES = {
    "warm-up": np.minimum(STEPS / 100, 1.0),
    "warm-up from nothing": np.where(STEPS < 1, 0.0, 1.0),
    "restarts": COSINE,
    "one cycle": np.interp(STEPS, [0, 200, 600], [0.04, 1.0, 1e-5]),
    "steps": 0.1 ** (STEPS // 200),
    "a third for five steps": np.where(STEPS < 5, 1 / 3, 1.0),
    "two optimizers in turn": np.where(STEPS % 2, 1.0, 0.1),
    "cyclic": np.abs(STEPS % 100 - 50) / 50 + 1e-3,
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_stays_quiet_on_schedules(schedule):
    assert fired(1e-3 * schedule) == []


def test_stays_quiet_on_numbers_that_are_none():
    assert fired([NAN] * 50) == []
    assert fired([1e-3] * 50 + [NAN, INF, 1e-3]) == []

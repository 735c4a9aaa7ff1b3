"""An update that the optimizer spoiled, and the sound steps after it."""

from __future__ import annotations

from finitune.series import Series
from finitune.symptoms.nonfinite_update import see


def test_fires_at_the_step_whose_update_was_taken_back() -> None:
    sighting = see(Series([3], [1.0]), Series([1, 2, 3], [0.0, 0.0, 1.0]))
    assert sighting is not None
    assert sighting.step == 3


def test_stays_quiet_at_the_steps_after_it() -> None:
    assert see(Series([3], [1.0]), Series([1, 2, 3, 4], [0.0, 0.0, 1.0, 0.0])) is None

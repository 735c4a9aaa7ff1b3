"""The chance of a value under the tail of those before it: right where the tail is known, not moved by outliers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.outliers import (
    KNOWN,
    chance_above,
    deviation,
    highest_cusum,
    level_at_beginning,
    levels_held,
    median,
    share_of_beginning,
)
from finitune.series import Series

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("chance", [1e-2, 1e-3, 1e-4])
def test_the_chance_is_right_for_an_exponential_tail(chance: float) -> None:
    """Of logarithms whose tail is that of a power, over many windows."""
    height = -math.log(chance)
    said = [chance_above(height, list(RNG.exponential(size=256)), 0.0) for _ in range(200)]
    assert chance / 6 < float(np.median(said)) < chance * 6


def test_few_false_alarms_on_a_normal_tail() -> None:
    values = list(RNG.standard_normal(3000))
    alarms = [at for at in range(256, 3000) if chance_above(values[at], values[at - 256 : at], 0.0) < 1e-4]
    assert len(alarms) <= 2


def test_one_spike_does_not_hide_the_next() -> None:
    values = [*RNG.standard_normal(255), 1e9]
    assert chance_above(60.0, values, 0.0) < 1e-9


def test_a_falling_level_does_not_hide_what_is_high_for_its_time() -> None:
    values = [10 - step / 40 + 0.1 * noise for step, noise in enumerate(RNG.standard_normal(256))]
    assert chance_above(values[-1] + 3, values, 0.0) < 1e-6
    assert values[-1] + 3 < values[0]


def test_a_level_far_from_zero_is_no_outlier() -> None:
    values = list(100 + RNG.standard_normal(256))
    assert chance_above(101.0, values, 0.0) > 1e-2


def test_nothing_is_said_while_little_is_known() -> None:
    assert chance_above(1e9, [0.0] * (KNOWN - 1), 0.0) == 1.0
    assert chance_above(0.0, [0.0] * 100, 0.1) == 1.0
    assert 0 < chance_above(0.5, [0.0] * 100, 0.1) < 1e-2


@given(st.lists(st.floats(-1e3, 1e3), max_size=300), st.floats(-1e6, 1e6))
def test_a_chance_is_a_chance(before: list[float], value: float) -> None:
    assert 0 <= chance_above(value, before, 0.01) <= 1


def test_median_and_deviation_are_those_of_the_bulk() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert math.isnan(median([]))
    values = [*RNG.standard_normal(1000), *[1e9] * 50]
    assert deviation(values) == pytest.approx(1.0, rel=0.2)


def test_the_level_at_the_beginning_is_that_of_a_loss_before_it_fell_at_once() -> None:
    slow = [5.0 - 0.1 * n for n in range(32)]
    assert level_at_beginning(Series(range(1, 33), slow)) == sorted(slow[:16])[4]
    fast = [1000.0 * 0.3**n for n in range(32)]
    assert level_at_beginning(Series(range(1, 33), fast)) == fast[2]
    spike = [1000.0, *[5.0] * 31]
    assert level_at_beginning(Series(range(1, 33), spike)) == 5.0
    assert level_at_beginning(Series()) == 0.0


def test_the_highest_cusum() -> None:
    assert highest_cusum([1.0, 1.0, -9.0, 2.0], drift=0.5, clip=3.0) == 1.5
    assert highest_cusum([9.0], drift=0.5, clip=3.0) == 2.5
    assert highest_cusum([], drift=0.5, clip=3.0) == 0.0


def test_the_levels_that_were_held() -> None:
    series = Series(range(1, 257), [1.0] * 32 + [2.0] * 192 + [3.0] * 32)
    assert list(levels_held(series, 32)) == [2.0, 2.0, 2.0, 2.0]
    assert list(levels_held(Series(range(1, 33), [1.0] * 32), 32)) == []


def test_the_share_of_the_beginning() -> None:
    series = Series(range(1, 33), [math.nan, *[2.0] * 15, *[1.0] * 16])
    assert share_of_beginning(series, 32) == 0.5
    assert math.isnan(share_of_beginning(series, 40))
    assert math.isnan(share_of_beginning(Series([1], [0.0]), 1))

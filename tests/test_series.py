"""A Series answers the same whether it grew live, was read back, or was cut at a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.series import BEGINNING, Series, lowest_level

steps = st.integers(-(2**40), 2**40)
points = st.dictionaries(steps, st.floats(), max_size=30).map(lambda d: sorted(d.items()))


def build(data: list[tuple[int, float]]) -> Series:
    return Series([step for step, _ in data], [value for _, value in data])


def same(one: Series, other: Series) -> bool:
    return np.array_equal(one.steps, other.steps) and np.array_equal(one.values, other.values, equal_nan=True)


@given(points)
def test_growing_equals_building(data: list[tuple[int, float]]) -> None:
    grown = Series()
    for step, value in data:
        grown.add(step, value)
    assert same(grown, build(data))
    assert len(grown) == len(data)
    assert bool(grown) == bool(data)


@given(points, steps)
def test_until_is_the_series_as_it_was(data: list[tuple[int, float]], step: int) -> None:
    series = build(data)
    past = series.until(step)
    assert same(past, build([point for point in data if point[0] <= step]))
    past.add(2**41, 1.0)
    assert len(series) == len(data), "a cut shares nothing with its series"


@given(points, steps)
def test_since_is_what_until_leaves(data: list[tuple[int, float]], step: int) -> None:
    series = build(data)
    rest = series.since(step)
    assert same(rest, build([point for point in data if point[0] > step]))
    assert len(rest) + len(series.until(step)) == len(series)


@given(points, steps, steps, st.integers(0, 12), st.integers(0, 12))
def test_since_is_read_as_a_series_of_its_own(
    data: list[tuple[int, float]], step: int, other: int, size: int, before: int
) -> None:
    """It is not copied."""
    rest, alone = build(data).since(step), build([point for point in data if point[0] > step])
    assert same(rest.until(other), alone.until(other))
    assert same(rest.since(other), alone.since(other))
    for read in (
        lambda one: (len(one), bool(one), one.first, one.last, one.last_step, one.pairs(), one.tail(size)),
        lambda one: (list(one.window(size, before=before)), list(one.head(size)), one.at(other)),
        lambda one: (one.last_where(math.isfinite), one.steps.tolist(), one.values.tolist()),
    ):
        assert str(read(rest)) == str(read(alone))
    if len(rest) < len(data):
        with pytest.raises(ValueError, match="shares"):
            rest.add(2**41, 1.0)


@given(points, st.integers(0, 40))
def test_window_is_the_newest_values(data: list[tuple[int, float]], size: int) -> None:
    window = build(data).window(size)
    expected = [value for _, value in data][max(len(data) - size, 0) :]
    assert np.array_equal(window, expected, equal_nan=True)


@given(points, st.integers(0, 12), st.integers(0, 12))
def test_parts_are_those_of_the_list(data: list[tuple[int, float]], size: int, before: int) -> None:
    series = build(data)
    values = [value for _, value in data]
    earlier = values[: max(len(values) - before, 0)]
    assert str(list(series.window(size, before=before))) == str(earlier[max(len(earlier) - size, 0) :])
    assert str(list(series.head(size))) == str(values[:size])
    assert str(series.tail(size)) == str(data[max(len(data) - size, 0) :])


@given(points, st.integers(-1, 60))
def test_the_value_at_a_step_is_its_own_or_none(data: list[tuple[int, float]], step: int) -> None:
    series = build(data)
    assert str(series.at(step)) == str(dict(data).get(step, math.nan))


@given(points, points)
def test_a_resumed_run_replaces_what_came_later(data: list[tuple[int, float]], again: list[tuple[int, float]]) -> None:
    series = build(data)
    for step, value in again:
        series.add(step, value)
    start = again[0][0] if again else 2**62
    assert same(series, build([point for point in data if point[0] < start] + again))
    assert np.all(np.diff(series.steps) > 0)


def test_the_newest_value_of_nothing_is_nan() -> None:
    assert math.isnan(Series().last)
    assert Series().last_step == -1
    series = Series([3, 5], [1.0, math.inf])
    assert (series.last_step, series.last) == (5, math.inf)
    assert repr(series) == "Series(2 steps, last 5: inf)"


@pytest.mark.parametrize(("at", "values"), [([1, 1], [0.0, 0.0]), ([2, 1], [0.0, 0.0]), ([1], [])])
def test_a_series_that_does_not_increase_is_refused(at: list[int], values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"Series|values"):
        Series(at, values)


@pytest.mark.parametrize(
    ("losses", "level"),
    [
        ([4.0, 2.0, 3.0], 2.0), ([math.nan, 4.0, math.inf, 0.0], 4.0), ([2.0, 1e-6], 1e-6),
        ([-5.6e-6, 8.4e-6], None), ([0.7, -0.1], None), ([0.0, 1e-9, 0.2], None), ([0.0, math.nan], None), ([], None),
    ],
)  # fmt: skip
def test_a_loss_that_begins_at_zero_or_passes_it_has_no_level(losses: list[float], level: float | None) -> None:
    assert lowest_level(np.array(losses, float)) == level


@given(st.integers(2 * BEGINNING + 4, 400), st.integers(0, 2000))
def test_a_bounded_series_keeps_its_beginning_and_its_newer_half(most: int, length: int) -> None:
    whole = build([(2 * step, float(step)) for step in range(length)])
    bounded = Series(most=most)
    for step, value in whole.pairs():
        bounded.add(step, value)
        assert len(bounded) <= most
    assert bounded.head(BEGINNING) == whole.head(BEGINNING)
    assert bounded.tail(most // 2) == whole.tail(most // 2)
    assert set(bounded.pairs()) <= set(whole.pairs())
    assert sorted(bounded.steps.tolist()) == bounded.steps.tolist()
    assert len(bounded) == length or len(bounded) > most // 2

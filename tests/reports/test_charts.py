"""Charts: thinning keeps what matters, and no value breaks them."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.reports import charts
from finitune.series import Series

NAN, INF = math.nan, math.inf


def crosses(svg: str) -> int:
    """Non-finite marks: marker uses in the colour of bad values."""
    return len(re.findall(r"<use[^>]*var\(--bad\)", svg))


def drawn(series: Series, scale: charts.Scale = "linear") -> str:
    svg = charts.lines([charts.Panel(series={"x": series}, scale=scale)])
    ET.fromstring(svg)
    return svg


@given(st.lists(st.floats(width=64), min_size=1, max_size=60), st.integers(1, 400))
def test_thinning_keeps_extremes_and_every_non_finite_step(values: list[float], repeat: int) -> None:
    tiled = np.tile(values, repeat)
    series = Series(range(len(tiled)), tiled)
    steps, kept = charts.thin(series)
    assert np.all(np.diff(steps) > 0)
    np.testing.assert_array_equal(kept, tiled[steps.astype(int)])
    finite = tiled[np.isfinite(tiled)]
    if len(finite):
        assert kept[np.isfinite(kept)].max() == finite.max()
        assert kept[np.isfinite(kept)].min() == finite.min()
    bad = np.flatnonzero(~np.isfinite(tiled))
    if len(bad) <= charts.NONFINITE_SHOWN:
        assert set(bad) <= set(steps.astype(int))
    assert len(steps) <= 2 * charts.COLUMNS + 2 + max(charts.NONFINITE_SHOWN, charts.COLUMNS)


def test_every_column_keeps_a_non_finite_mark_when_there_are_too_many() -> None:
    values = np.where(np.arange(100_000) % 2, NAN, 1.0)
    steps, kept = charts.thin(Series(range(100_000), values))
    bad = steps[~np.isfinite(kept)]
    assert charts.COLUMNS <= len(bad) <= charts.COLUMNS + 1
    assert np.diff(bad).max() < 2 * 100_000 / charts.COLUMNS


@pytest.mark.parametrize("scale", ["linear", "log", "log2"])
@pytest.mark.parametrize(
    "values",
    [
        [], [1.0], [NAN], [INF, -INF, NAN], [0.0, 0.0], [-1.0, -2.0], [1e308, -1e308], [5e-324, 1e308], [1.0, NAN, 2.0],
        [65536.0] * 4,
    ],
)  # fmt: skip
def test_no_value_breaks_a_chart(values: list[float], scale: charts.Scale) -> None:
    svg = drawn(Series(range(len(values)), values), scale)
    assert crosses(svg) == sum(not math.isfinite(v) for v in values)
    assert "nan" not in svg


@settings(max_examples=15)
@given(
    st.dictionaries(st.integers(0, 2**61), st.floats(width=64), max_size=12), st.sampled_from(["linear", "log", "log2"])
)
def test_any_series_draws(points: dict[int, float], scale: charts.Scale) -> None:
    drawn(Series(sorted(points), [points[step] for step in sorted(points)]), scale)


def test_charts_refer_to_nothing_outside_and_take_the_colours_of_the_page() -> None:
    svg = drawn(Series(range(5), [1.0, 2.0, NAN, 3.0, 1.0]))
    assert "http" not in svg
    assert "#0" not in svg
    assert "<style" not in svg
    assert "<metadata" not in svg
    assert ">step</text>" in svg, "text stays text"


def test_names_in_charts_are_escaped_and_never_formulas() -> None:
    name = "</svg><script>alert(1)</script>$x^2$\x1b\ud800"
    svg = charts.lines([charts.Panel(series={name: Series([1, 2], [1, 2]), "b": Series([1], [1])}, title=name)])
    svg += charts.profile([(name, 3.0, 0), ("b", INF, 2)])
    assert "<script" not in svg
    assert svg.count("</svg>") == 2
    assert "$x^2$" in svg


def test_profile_marks_modules_that_gave_non_finite_values() -> None:
    svg = charts.profile([("a", 10.0, 0), ("b", 70000.0, 3), ("c", NAN, 0), ("d", 0.0, 0)], origin="b")
    ET.fromstring(svg)
    assert crosses(svg) == 2
    assert "65504" in svg


def test_profile_of_a_deep_model_names_the_origin() -> None:
    layers = [(f"model.layers.{i}.mlp", 1.0 + i, 0) for i in range(900)]
    svg = charts.profile(layers, origin="model.layers.417.mlp")
    assert ">model.layers.417.mlp</text>" in svg
    assert re.sub(r"<title>.*?</title>", "", svg).count("model.layers") < 60, (
        "labels; the others are named where pointed at"
    )


def test_wide() -> None:
    assert charts.wide(Series(range(4), [1.0, 2.0, 1.0, 1e6]))
    assert not charts.wide(Series(range(4), [1.0, 2.0, NAN, INF]))
    assert not charts.wide(Series(range(4), [0.0, 1.0, 1.0, 1e6]))
    assert not charts.wide(Series())


def test_users_20_each_row_says_its_name_and_the_origin_has_a_mark():
    layers = [(f"model.layers.{n}.mlp<b>", 10.0 + n, 0) for n in range(80)]
    svg = charts.profile(layers, origin="model.layers.7.mlp<b>")
    assert "<title>model.layers.7.mlp&lt;b&gt;: 17</title>" in svg
    assert svg.count("<title>") == 80
    assert svg.count("var(--bad)") > charts.profile(layers).count("var(--bad)")

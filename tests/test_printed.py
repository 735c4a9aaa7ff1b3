import math

import pytest

from finitune.printed import groups_in, untruth
from finitune.series import Series

LOSS = Series([1, 2, 3, 4], [3.7, 3.6, math.nan, math.nan])
NORM = Series([1, 2, 3, 4], [1.0, 1.4, math.inf, math.nan])


def test_zero_for_nan_is_decoded():
    seen = untruth("loss", 0.0, LOSS, since=2)
    assert seen.steps == [3, 4]
    assert seen.text == "the trainer shows loss 0; the loss of step 3 was nan"


@pytest.mark.parametrize(("norm", "groups"), [(1.0, "1 parameter group"), (math.sqrt(2), "2 parameter groups")])
def test_the_sentinel_of_deepspeed_is_decoded(norm, groups):
    seen = untruth("grad_norm", norm, NORM, since=2)
    assert "the grad norm of step 3 was inf" in seen.text
    assert seen.text.endswith(f"is how DeepSpeed writes that, with {groups})")


def test_a_sentinel_beside_finite_groups_is_told_without_a_count():
    assert untruth("grad_norm", 1.008, NORM, since=2).text.endswith("was inf")
    assert groups_in(1.008) is None
    assert groups_in(0.0) is None


AGAIN = Series([1, 2, 3, 4, 5], [3.7, 3.6, math.nan, 3.51234, 3.4])


def test_a_nan_that_stays_in_the_sum_of_the_trainer_is_decoded():
    seen = untruth("loss", math.nan, AGAIN, since=3)
    assert seen.steps == [4, 5]
    assert seen.text == (
        "the trainer shows loss nan; the loss of step 5 was 3.4 (the nan of step 3 is in its sum, and stays there)"
    )
    assert untruth("loss", math.nan, AGAIN, since=2) is None, "the step itself is among those shown"
    assert untruth("loss", math.nan, Series([1, 2], [3.7, 3.6]), since=0) is None, "it never was: not ours to say"


@pytest.mark.parametrize(
    ("name", "printed", "series", "since"),
    [
        ("loss", math.nan, LOSS, 2),  # the trainer tells the truth
        ("loss", None, LOSS, 2),
        ("loss", "0.0", LOSS, 2),
        ("loss", 0.0, LOSS, 4),  # a healthy loss of zero
        ("grad_norm", math.sqrt(2), Series([1], [1.4142]), 0),
    ],
)
def test_nothing_is_said_where_nothing_is_hidden(name, printed, series, since):
    assert untruth(name, printed, series, since=since) is None


def test_a_long_run_is_not_walked_at_each_line(monkeypatch):
    """One log line is compared with the steps since the one before it, however long the run is."""
    run = Series(range(100_000), [1.0] * 99_999 + [math.nan])
    read = []
    pairs = Series.pairs
    monkeypatch.setattr(Series, "pairs", lambda series: read.append(len(series)) or pairs(series))
    monkeypatch.delattr(Series, "values")
    assert untruth("loss", 0.0, run, since=99_990).steps == [99_999]
    assert untruth("loss", math.nan, run, since=99_990) is None
    assert read == [9, 9]

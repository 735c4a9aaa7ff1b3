from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.series import Series
from finitune.symptoms.zero_gradient import IN_A_ROW, review, see


def fired(norms, losses):
    return [sighting.step for sighting in seen(see, series(norms), loss=series(losses))]


def test_fires_after_eight_steps_without_any_gradient():
    assert fired([1.0, 0.5, *[0] * 9], [2.0] * 11) == [10, 11]
    assert fired([0.0] * IN_A_ROW, [NAN] * IN_A_ROW) == [IN_A_ROW]


@pytest.mark.parametrize(
    ("norms", "losses"),
    [
        ([1.0, 0, 0, 0, 1.0, 0, 0, 0], [2.0] * 8),  # a batch that gives none now and then
        ([0.0] * 8, [0.0] * 8),  # zero-loss
        ([1e-30] * 8, [2.0] * 8),
        ([NAN] * 8, [2.0] * 8),
        ([0.0] * 7, [2.0] * 7),
    ],
)
def test_stays_quiet(norms, losses):
    assert fired(norms, losses) == []


def whole(values):
    return Series(range(1, len(values) + 1), values)


LOSSES, NORMS = [6.2, 6.3, 4.7, 6.2, 4.6, 6.2], [3.4, 3.9, 0.0, 3.4, 0.0, 3.7]


@pytest.mark.parametrize("scale", [1, 1e4, -1])
def test_fires_between_rows_that_have_a_gradient(scale):
    sighting = review(whole([scale * loss for loss in LOSSES]), whole(NORMS))
    assert (sighting.step, sighting.observation) == (3, "rows-without-gradient")


def test_fires_to_the_end():
    sighting = review(whole([6.2, 38.0, *[6.24] * 12]), whole([1.5, 90.0, *[0.0] * 12]))
    assert (sighting.step, sighting.observation) == (3, "gradient-gone")


@pytest.mark.parametrize(
    ("losses", "norms", "more"),
    [
        ([6.2] * 2 + [5 - n / 9 for n in range(30)], [0.0] * 2 + [1.3] * 30, {}),  # skipped while a scale settles
        (LOSSES[:4], NORMS[:4], {}),  # once
        ([0.001 if not norm else loss for loss, norm in zip(LOSSES, NORMS, strict=True)], NORMS, {}),  # learned
        ([6.0 - n / 10 for n in range(6)], [0.002, 0.001, 0.0, 0.001, 0.0, 0.001], {}),  # rounded
        ([0.5, 0.3, 0.0, 0.2, 0.0, 0.0], [1.5, 1.0, 0.0, 0.9, 0.0, 0.0], {}),  # a margin that is kept
        (LOSSES, NORMS, {"rewards": True}),  # answers with one reward have none
        (LOSSES, NORMS, {"skipped": whole([0.0] * 6)}),
        ([6.24] * 9, [0.0] * 9, {}),  # too few rows
    ],
)
def test_stays_quiet_on_a_gradient_of_zero_that_is_earned(losses, norms, more):
    assert review(whole(losses), whole(norms), **more) is None

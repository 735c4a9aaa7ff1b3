import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.series import Series
from finitune.symptoms.standstill import LEAST_ROWS, review


def series(values):
    return Series(range(1, len(values) + 1), values)


ROUND = [2.0437 + (n * 5 % 7) / 10 for n in range(28)]
FLAT = [2.4 - n / 400 for n in range(40)]


@pytest.mark.parametrize("scale", [1, 0.1, 1e6, -1.0])
@pytest.mark.parametrize(("losses", "period"), [(ROUND, 7), ([2.0437] * 24, 1)])
def test_fires_where_losses_repeat_to_the_last_digit(losses, period, scale):
    sighting = review(series([scale * 1.0001 * loss for loss in losses]))
    assert (sighting.observation, sighting.numbers["period"]) == ("loss-repeats", period)


def test_fires_on_a_huge_norm_beside_a_loss_that_does_not_move():
    sighting = review(series(FLAT), series([3e17 * (1 + n % 2) for n in range(40)]))
    assert sighting.observation == "huge-norm"


@pytest.mark.parametrize(
    ("losses", "norms"),
    [
        (ROUND[:10], None),  # one epoch, and the beginning of the next
        ([*ROUND, 2.1234], None),  # it began to move
        ([0.12] * 40, None),  # a plateau, printed with two digits
        (FLAT, [1.3] * 40),
        (FLAT, [1.3] * 30 + [3e17] * 10),  # a while, and not throughout
        ([1e7 * 0.97**n for n in range(60)], [3e7] * 60),  # the sum over a batch: large, and learned
        (ROUND[: LEAST_ROWS - 1], [1e18] * (LEAST_ROWS - 1)),
    ],
)
def test_stays_quiet_on_what_moves_or_may_have_moved(losses, norms):
    assert review(series(losses), series(norms) if norms else None) is None


def test_stays_quiet_where_rewards_are_logged():
    assert review(series([0.0437] * 40), rewards=True) is None


@given(st.lists(st.floats(-1e3, 1e3), min_size=30, max_size=60, unique=True))
def test_stays_quiet_where_no_loss_comes_twice(losses):
    assert review(series(losses)) is None

import pytest

from finitune.facts import Optimizer
from finitune.remedies.lower_learning_rate import propose
from finitune.series import Series


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (Optimizer(lr=0.1), 2e-5), (Optimizer(lr=0.1, lora=True), 2e-4), (Optimizer(lr=1e-4), 1e-5),
        (Optimizer(lr=1e30), 2e-5), (Optimizer(name="SGD", lr=1e30), 0.1), (Optimizer(name="SGD", lr=30, clip=0.25), 3),
        (Optimizer(name="SGD", lr=0.5), 0.05), (Optimizer(name="adamw_torch", lr=0.5), 2e-5),
    ],
)  # fmt: skip
def test_fires_with_the_usual_rate_or_a_tenth(optimizer, rate):
    assert propose(optimizer).patch["learning_rate"] == pytest.approx(rate)


def test_stays_quiet_when_the_rate_is_not_known_or_moves_nothing():
    assert propose(Optimizer()) is None
    assert propose(Optimizer(lr=1e-7)) is None


def test_of_a_schedule_that_has_raised_it_the_rate_that_was_reached_is_named():
    remedy = propose(Optimizer(name="SGD", lr=1e-5), Series([1, 2, 3], [1e-5, 1e-3, 1.4]))
    assert remedy.patch is None
    assert "below 0.14: from 1e-05 it has come to 1.4" in remedy.text
    assert propose(Optimizer(name="SGD", lr=0.5), Series([1, 2], [0.5, 0.4])).patch["learning_rate"] == pytest.approx(
        0.05
    )


def test_advice_where_a_tenth_is_as_absurd():
    remedy = propose(Optimizer(name="lion", lr=1e6))
    assert remedy.patch is None
    assert "published recipe for lion (it is 1e+06)" in remedy.text

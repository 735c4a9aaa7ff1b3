import pytest

from finitune.facts import Optimizer
from finitune.remedies.lower_learning_rate import propose


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (Optimizer(lr=0.1), 2e-5), (Optimizer(lr=0.1, lora=True), 2e-4), (Optimizer(lr=1e-4), 1e-5),
        (Optimizer(name="SGD", lr=0.5), 0.05), (Optimizer(name="adamw_torch", lr=0.5), 2e-5),
    ],
)  # fmt: skip
def test_fires_with_the_usual_rate_or_a_tenth(optimizer, rate):
    assert propose(optimizer).patch["learning_rate"] == pytest.approx(rate)


def test_stays_quiet_when_the_rate_is_not_known():
    assert propose(Optimizer()) is None

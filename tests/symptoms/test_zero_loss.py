from __future__ import annotations

import numpy as np
import pytest
from tests.symptoms.runs import NAN, noise, seen, series

from finitune.symptoms.zero_loss import IN_A_ROW, START, see


def fired(losses, norms=None):
    norms = [float(loss != 0) for loss in losses] if norms is None else norms
    return [sighting.step for sighting in seen(see, series(losses), grad_norm=series(norms))]


def test_fires_from_the_first_step_on():
    assert fired([0.0] * 12) == list(range(IN_A_ROW, 13))


def test_fires_when_the_loss_is_gone_at_once():
    assert fired([*noise(50), *[0.0] * 12])[0] == 50 + IN_A_ROW
    assert fired([*noise(50, level=400.0, spread=0.7), *[0.0] * 8]) == [58], "summed over very different batches"


def test_stays_quiet_on_a_hinge_that_is_satisfied_by_and_by():
    rng = np.random.default_rng(0)
    losses = np.maximum(0, np.linspace(1, -2, 300) + rng.standard_normal(300))
    losses[-40:] = 0
    assert fired(losses) == []
    assert fired([*np.exp(-np.arange(200.0)), *[0.0] * 20]) == [], "as it underflows"
    assert fired([*np.maximum(np.exp(-np.arange(100.0) / 4), 1e-8), *[0.0] * 20]) == [], "as it is solved"


def test_a_loss_of_rewards_may_be_zero_for_long():
    def of(steps, calls):
        losses = series([0.0] * steps)
        return [one.step for one in seen(see, losses, grad_norm=losses, untracked_calls=series(calls))]

    assert of(12, [9.0] * 12) == []
    assert of(70, [9.0] * 70) == [START]
    assert of(12, [1.0] * 12) == of(12, [500.0, *[0.0] * 11]) == of(12, [0.0] * 12) == list(range(IN_A_ROW, 13))


def test_stays_quiet_where_there_is_a_gradient():
    """The loss of GRPO is zero before the first update: ratios are one and advantages cancel out."""
    assert fired([0.0] * 20, [0.3] * 20) == []


@pytest.mark.parametrize("losses", [[NAN] * 10, [0.0, NAN] * 10, [0.0] * 7, [2.0, 0, 0, 0] * 5])
def test_stays_quiet_on_other_losses(losses):
    assert fired(losses) == []

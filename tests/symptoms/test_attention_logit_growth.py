from __future__ import annotations

import pytest
from tests.symptoms.runs import INF, NAN, levels, seen, series

from finitune.symptoms.attention_logit_growth import see


def said(logits):
    return levels(seen(see, series(logits, every=64)))


def test_fires_where_scores_are_as_large_as_in_runs_that_diverge():
    assert said([20.0, 2e4]) == [(128, "suspicion")]
    assert said([3e4]) == [(64, "suspicion")]
    assert said([INF]) == [(64, "suspicion")]


def test_fires_where_scores_grow_tenfold_between_two_measurements():
    assert said([0.3, 0.4, 30.0]) == [(192, "suspicion")]


def test_fires_as_a_note_above_the_bound_of_qk_clip():
    assert said([20.0, 60.0, 120.0]) == [(192, "note")]


@pytest.mark.parametrize("logits", [[0.2, 1.0, 4.0, 9.0, 20.0], [150.0, 180.0, 160.0], [0.01, 0.5], [NAN, 20.0], [NAN]])
def test_stays_quiet_on_growth_and_on_a_model_whose_scores_are_large(logits):
    assert said(logits) == []

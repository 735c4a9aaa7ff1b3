"""Updates that round away; not at the end of a schedule, and not in a model that has converged."""

from __future__ import annotations

import numpy as np
from tests.symptoms.runs import NAN, levels, seen, series

from finitune.symptoms.stagnation import see

EVERY = 16


def said(shares, *, rates=None, norms=None, known=True):
    steps = EVERY * len(shares)
    rates = [1e-5] * steps if rates is None else rates
    norms = [1.0] * steps if norms is None else norms
    rate = {"lr": series(rates)} if known else {}
    return levels(seen(see, series(shares, every=EVERY), grad_norm=series(norms), **rate))


def test_fires_in_the_third_sample_in_which_few_weights_move():
    assert said([0.02] * 4) == [(48, "suspicion"), (64, "suspicion")]
    assert said([1.0, 0.9, 0.0, 0.0, 0.0]) == [(80, "suspicion")]


def test_fires_as_a_note_where_less_than_half_moves():
    assert said([0.155] * 3) == [(48, "note")]


def test_fires_as_a_note_at_the_end_of_a_schedule():
    rates = [1e-5] * 80 + [1e-8] * 80
    assert said([0.9] * 5 + [0.001] * 5, rates=rates) == [(128, "note"), (144, "note"), (160, "note")]


def test_fires_where_no_rate_is_known_and_few_weights_have_ever_moved():
    assert said([0.095, 0.08, 0.06, 0.0], known=False)[0] == (48, "suspicion")
    assert {level for _, level in said([0.5, 0.08, 0.06, 0.01, 0.0, 0.0], known=False)} == {"note"}


def test_stays_quiet_in_float32_and_where_a_part_moves():
    assert said([1.0, 0.9999, 0.97] * 4) == []
    assert said([0.88, 0.3, 0.3] * 4) == []


def test_stays_quiet_at_a_rate_of_zero_and_on_numbers_that_are_none():
    assert said([0.0] * 4, rates=[0.0] * 64) == []
    assert said([NAN] * 4) == []
    assert said([0.0] * 2) == []


def test_stays_below_a_suspicion_where_the_gradient_is_gone():
    norms = np.exp(-np.arange(160) / 8)
    assert {level for _, level in said([0.9] * 5 + [0.01] * 5, norms=norms)} == {"note"}

from __future__ import annotations

import pytest
from tests.symptoms.runs import INF, NAN, levels, seen, series

from finitune.symptoms.replicas_disagree import see


def said(errors):
    return levels(seen(see, series(errors, every=50)))


def test_fires_and_is_certain_where_ranks_that_agreed_differ_twice():
    assert said([0, 0, 1e-4, 2e-4]) == [(150, "suspicion"), (200, "incident")]
    assert said([0, INF, INF])[-1] == (150, "incident")


def test_fires_as_a_suspicion_where_they_never_agreed():
    assert said([0.1, 0.1, 0.1]) == [(50, "suspicion"), (100, "suspicion"), (150, "suspicion")]


@pytest.mark.parametrize("errors", [[0.0] * 4, [1e-8] * 4, [NAN] * 3])
def test_stays_quiet_on_equal_weights_and_on_rounding(errors):
    assert said(errors) == []

import pytest

from finitune.causes.logging_hides_nan import foresee, weigh
from finitune.facts import Training


def test_fires_where_the_filter_was_asked_for():
    (finding,) = foresee(Training(nan_filter=True, source="args.json"))
    assert finding.severity == "info"
    assert finding.remedy.patch == {"logging_nan_inf_filter": False}


@pytest.mark.parametrize("switch", [None, False])
def test_stays_quiet(switch):
    assert not list(foresee(Training(nan_filter=switch)))


def test_weighs_against_an_honest_log():
    assert sum(e.bits for e in weigh(Training(nan_filter=False), set())) < 0

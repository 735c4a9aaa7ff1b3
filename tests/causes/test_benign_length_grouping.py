import pytest

from finitune.causes.benign_length_grouping import foresee, weigh
from finitune.facts import Batching


def test_fires_as_information_only():
    (finding,) = foresee(Batching(group_by_length=True, source="args.json"))
    assert finding.severity == "info"


@pytest.mark.parametrize("batching", [Batching(), Batching(group_by_length=False)])
def test_stays_quiet(batching):
    assert not list(foresee(batching))


def test_weighs_against_a_bad_number():
    assert sum(e.bits for e in weigh(Batching(group_by_length=True), {"nonfinite-loss"})) < 0

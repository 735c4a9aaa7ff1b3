import pytest

from finitune.causes.rl_group_std_zero import foresee, weigh
from finitune.facts import Training


def test_fires_for_one_answer_per_prompt():
    (finding,) = foresee(Training(generations=1, source="grpo.yaml"))
    assert finding.severity == "error"
    assert finding.remedy.patch == {"num_generations": 8}


@pytest.mark.parametrize("generations", [None, 2, 8])
def test_stays_quiet(generations):
    assert not list(foresee(Training(generations=generations)))


def test_stays_quiet_where_a_teacher_says_what_is_good():
    assert not list(foresee(Training(generations=1, teacher="a/b")))


def test_weighs_for_and_against():
    assert sum(e.bits for e in weigh(Training(generations=1), {"nonfinite-loss"})) > 0
    assert sum(e.bits for e in weigh(Training(generations=8), {"nonfinite-loss"})) < 0

import pytest

from finitune.causes.rl_group_std_zero import foresee, weigh
from finitune.facts import Training
from finitune.finding import Origin


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


def divided(line: str, divisor: str | None = "1 of 1 elements of the divisor are 0") -> float:
    origin = Origin(
        module=None, op="aten.div", phase="input", dtype="float32", divisor=divisor, line=f"grpo.py:43 in step: {line}"
    )
    return sum(e.bits for e in weigh(origin=origin))


def test_weighs_by_the_division_of_a_loop_of_the_users_own():
    assert divided("advantage = (r - r.mean()) / r.std()") > 6
    assert divided("adv = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)") > 6
    assert 0 < divided("return (y - y.mean()) / y.std()") < 6, "the spread of something else"
    assert divided("share = weight / weight.sum()") == 0
    assert divided("advantage = (r - r.mean()) / r.std()", divisor=None) == 0

"""The exponential of a difference of log-probabilities, by the names that implementations give it."""

from dataclasses import replace

import pytest

from finitune.causes.rl_ratio_or_kl_overflow import weigh
from finitune.finding import Origin

EXP = Origin(
    module=None, op="aten.exp", phase="forward", dtype="float32", line="ppo.py:31: ratio = torch.exp(new - old)"
)
LINES = ["x.py:1 in f: kl = (ref_logps - logps).exp() - 1", "x.py:7: r = torch.exp(logprobs - old_logprobs)"]


def bits(origin: Origin) -> float:
    return sum(one.bits for one in weigh(origin))


@pytest.mark.parametrize("line", [EXP.line, *LINES])
def test_fires(line):
    assert bits(replace(EXP, line=line)) == 9


@pytest.mark.parametrize(
    "other",
    [
        replace(EXP, line=None), replace(EXP, line="train.py:3: w = torch.exp(student - teacher)"),
        replace(EXP, op="aten.div"), replace(EXP, phase="backward"),
    ],
)  # fmt: skip
def test_stays_quiet(other):
    assert bits(other) == 0

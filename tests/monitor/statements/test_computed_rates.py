"""A learning rate that the loop computes of tensors."""

from __future__ import annotations

import math

import pytest
from tests.monitor import user_program

from finitune.monitor.statements.computed_rates import bad_rate


def users(source, rate=math.nan):
    return user_program.found(source, lambda: bad_rate(rate), groups=[{"lr": 0.1}])


NOISE = """
small, big = torch.tensor(1.0), torch.tensor(0.25)
noise = (small - big) / (big - small / 2)
rate = 0.1 / torch.sqrt(1 + noise)
for group in groups:
    group["lr"] = rate.item()
found()
"""


def test_the_statement_that_made_it():
    origin = users(NOISE)
    assert (origin.op, origin.phase, origin.tensor) == ("aten.sqrt", "optimizer", "rate")
    assert origin.line.endswith("rate = 0.1 / torch.sqrt(1 + noise)")


@pytest.mark.parametrize("rate", [None, 0.1])
def test_stays_quiet_where_the_rate_is_finite(rate):
    assert users(NOISE, rate) is None


@pytest.mark.parametrize(
    "source",
    [
        "left = 0\nrate = 1e308 * 10 if not left else 0.1\ngroups[0]['lr'] = rate\nfound()\n",  # of no tensor
        NOISE.replace('group["lr"]', 'group["eps"]'),
        NOISE.replace("noise)\n", "noise)\nrate = 0.1\n"),
    ],
)
def test_stays_quiet_where_no_tensor_tells(source):
    assert users(source.replace("rate.item()", "float(rate)")) is None

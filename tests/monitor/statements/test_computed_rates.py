"""A learning rate that the loop computes of tensors."""

from __future__ import annotations

import math

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements import attribute_writers
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


@pytest.mark.slow
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


FOLLOWS = """
class Rate:
    def __init__(self, rate):
        self.rate, self.before = torch.tensor(rate), None

    def update(self, share):
        if self.before is not None:
            progress = self.before / share
            self.rate = self.rate * progress.clamp(0.7, 1.1)
        self.before = share
        for group in groups:
            group["lr"] = SET

follows = Rate(0.1)
follows.update(torch.tensor(0.0))
follows.update(torch.tensor(0.0))
found()
"""


@pytest.mark.parametrize(
    ("written", "is_found"),
    [
        ("float(self.rate)", True),
        ("self.rate.item()", True),
        ("self.rate", False),  # a schedule may do so
        ("float(self.rate / 2)", False),  # one of two
    ],
)
def test_a_method_that_has_ended_and_set_it_to_the_number_in_a_tensor(written, is_found, monkeypatch):
    monkeypatch.setattr(attribute_writers, "user_modules", lambda: [{"__file__": user_program.FILE, "torch": torch}])
    origin = users(FOLLOWS.replace("SET", written))
    assert (origin is not None) == is_found
    if origin is not None:
        assert (origin.op, origin.phase, origin.values) == ("aten.div", "optimizer", "1 nan")
        assert origin.line == "user_program.py:8 in update: progress = self.before / share"

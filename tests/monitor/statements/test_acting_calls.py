"""What an object keeps was made bad by a method that the loop has called before, for nothing but that."""

from __future__ import annotations

import numpy as np
import pytest
from tests.monitor import user_program

from finitune.monitor.statements.bad_statement import bad_statement

PROGRAM = """
class Scale:
    def __init__(self):
        self.mean, self.var = torch.zeros(()), torch.ones(())

    def observe(self, y):
        {update}

    def __call__(self, y):
        return (y - self.mean) / (self.var + 1e-4) ** 0.5

scale, tracker, model = Scale(), Scale(), torch.nn.Linear(3, 1)
{before}
for y in (torch.ones(4) * 2, torch.ones(1)):
    x = torch.ones(len(y), 3)
    {acts}
    loss = (model(x).squeeze(-1) - scale(y)).square().mean()
    {after}
found()
"""
TENSORS = "self.var = 0.9 * self.var + 0.1 * y.var()"
IN_PLACE = "self.var.mul_(0.9).add_(y.std().square(), alpha=0.1)"
NUMBERS = "self.var = 0.9 * float(self.var) + 0.1 * y.var().item()"
ARRAYS = "self.var = 0.9 * np.float32(self.var) + 0.1 * y.numpy().var(ddof=1)"
BY_NAME = "spread = (y - y.mean()).square().sum() / (len(y) - 1)\n        self.var = self.var.lerp(spread, 0.1)"


def origin(update, *, acts="scale.observe(y)", before="pass", after="pass"):
    program = PROGRAM.format(update=update, acts=acts, before=before, after=after)
    with np.errstate(all="ignore"):
        return user_program.found(program, bad_statement, np=np)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("update", "op"),
    [(TENSORS, "var"), (IN_PLACE, "std"), (NUMBERS, "var"), (ARRAYS, "var"), (BY_NAME, "div")],
    ids=["tensors", "in place", "numbers", "arrays", "by name"],
)
def test_the_operator_in_the_method(update, op):
    found = origin(update)
    assert (found.op, found.phase) == (f"aten.{op}", "forward")
    assert " in observe: " in found.line


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "given",
    [
        {"acts": "tracker.observe(y)", "before": "scale.var = torch.tensor(float('nan'))"},
        {"acts": "scale.observe(torch.ones(3))", "before": "scale.var = torch.tensor(float('nan'))"},
        {"acts": "pass", "after": "scale.observe(torch.ones(4))", "before": "scale.var = torch.tensor(float('nan'))"},
    ],
    ids=["of another object", "with what leaves it finite", "later"],
)
def test_stays_quiet_where_it_was_bad_before(given):
    found = origin(TENSORS, **given)
    assert found is None or " in observe: " not in (found.line or "")

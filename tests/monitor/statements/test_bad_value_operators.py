"""The only operation that can make a finite number bad: of a line, and of a function that a statement calls."""

from __future__ import annotations

import ast
import math

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements.bad_statement import bad_statement
from finitune.monitor.statements.bad_value_operators import makers_in, only_one, operator_in


@pytest.mark.parametrize(
    ("line", "operator"),
    [
        ("a.py:3 in f: return torch.dot(row, w / w.sum())", "aten.div"), ("a.py:3: y = x.log()", "aten.log"),
        ("a.py:3: y = x.log() / x", None), ("a.py:3: y = model(x) / x", None), ("a.py:3: y = x +", None),
        ("a.py:3", None), ("a.py:3: y = x + 1", None),
    ],
)  # fmt: skip
def test_the_operator_of_a_line_where_only_one_can_be_meant(line, operator):
    assert operator_in(line) == operator


DRAWN = """
generator = torch.Generator().manual_seed(0)

def unit_range(y):
    low, high = y[:, :2].amin(1, keepdim=True), y[:, :2].amax(1, keepdim=True)
    return (y - low) / (high - low)

def readings():
    y = torch.randn(4, 3, generator=generator)
    y[2] = DRAWN
    return y

y = readings()
y = unit_range(y)
loss = ((x @ w).unsqueeze(1) - y).square().mean()
found()
"""


@pytest.mark.parametrize(("drawn", "op", "line"), [
    ("torch.tensor([0.5, 0.5, 0.7])", "aten.div", "user_program.py:6 in unit_range: return (y - low) / (high - low)"),
    ("0.5", "input", "user_program.py:14: y = unit_range(y)"),
])  # fmt: skip
def test_the_only_operation_of_a_function_that_can_make_it_bad_where_what_it_was_given_is_overwritten(drawn, op, line):
    """A NaN may have been there before; what is infinite now was not."""
    given = {"w": torch.ones(3, requires_grad=True), "x": torch.arange(12.0).reshape(4, 3)}
    origin = user_program.found(DRAWN.replace("DRAWN", drawn), bad_statement, **given)
    assert (origin.op, origin.line) == (op, line)


class Counter:
    def __init__(self):
        self.count, self.decay, self.rate = 3, 0.9, torch.tensor(0.5)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))

    def forward(self, x):
        return self.inner(x) / x.norm()


@pytest.mark.parametrize(
    ("source", "operator"),
    [
        ("y = x / (1 - own.decay ** own.count)", "aten.div"), ("y = x.log() * (1 / own.count)", "aten.log"),
        ("y = x.log() * (1 / own.rate)", None), ("y = x.log() * math.exp(own.count)", "aten.log"),
        ("y = layers(x).mean()", "aten.mean"), ("y = loss(x, x)", None), ("y = scaled(x)", "aten.div"),
        ("y = scaled(x).log()", None), ("y = unknown(x).log()", None),
        ("y = x ** 2 / x", "aten.div"), ("y = x.pow(3) / x", "aten.div"), ("y = x ** 0.5 / x", None),
    ],
)  # fmt: skip
def test_numbers_raise_and_layers_keep_what_is_finite(source, operator):
    values = {
        "own": Counter(), "math": math, "x": torch.ones(3), "scaled": Scaled(),
        "layers": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()), "loss": torch.nn.L1Loss(),
    }  # fmt: skip
    found = only_one(makers_in(ast.parse(source), values, ("user_program.py", "f")), of_nothing=True)
    assert (found and found[0]) == operator

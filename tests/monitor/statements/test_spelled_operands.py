"""Operands of a loss that no variable holds."""

from __future__ import annotations

import pytest
import torch
from tests.monitor import user_program
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

LOOP = """
for step in range(1, 5):
    x, width = torch.randn(8, 3), torch.ones(8)
    if step == 3:
        width[5] = 0.0
    each = model(x).square().squeeze(1) * (EXPRESSION)
    optimizer.zero_grad()
    each.mean().backward()
    optimizer.step()
"""
FUNCTION = """
def compute_loss(x, width):
    return (model(x).square().squeeze(1) * (width / width.square())).mean()

for step in range(1, 5):
    x, width = torch.randn(8, 3), torch.ones(8)
    if step == 3:
        width[5] = 0.0
    optimizer.zero_grad()
    compute_loss(x, width).backward()
    optimizer.step()
"""


def origin_of(source, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        user_program.run(source, torch=torch, model=model, optimizer=optimizer)
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    return event["origin"]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (LOOP.replace("EXPRESSION", "width / width.square()"), "each = model(x)"),
        (LOOP.replace("EXPRESSION", "(width / width.square()).clamp(max=9)"), "each = model(x)"),
        (FUNCTION, "return (model(x)"),
    ],
)
def test_the_operator_of_an_expression_within_a_statement_that_calls_the_model(source, line, tmp_path):
    origin = origin_of(source, tmp_path)
    assert (origin["op"], origin["phase"], origin["rows"]) == ("aten.div", "input", [5])
    assert line in origin["line"]


def test_an_expression_that_is_another_value_is_not_named(tmp_path):
    source = LOOP.replace("EXPRESSION", "width / width.square() + torch.rand(8)")
    assert origin_of(source, tmp_path)["op"] != "aten.div"

"""What a function that has ended has written into an attribute of an object, which a later step takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements import attribute_writers

PROGRAM = """
def begin():
    state.weight = torch.ones(3)

def focus(errors):
    share = errors / errors.sum()
    state.weight = 0.5 + 1.5 * share
OTHER
def step():
    loss = F.cross_entropy(torch.ones(3, 3), torch.arange(3), weight=state.weight)
    found()

begin()
focus(torch.zeros(3))
step()
"""


@pytest.mark.parametrize(("other", "is_sure"), [
    ("", True),
    ("def mark(other): other.name = other.name / 2", True),
    ("def sharpen(): state.weight = state.weight.log()", False),
    ("def sharpen(): state.weight = log(state.weight)", False),
    ("def tilt(total):\n    part = total + 1\n    part /= total\n    state.weight = part", False),
    ("def tilt(total): state.weight, total = total / 2, 0", False),
    ("def load(path): state.weight = torch.load(path)", False),
])  # fmt: skip
def test_the_only_statement_that_can_have_made_it_bad(other, is_sure, monkeypatch):
    state = SimpleNamespace()
    monkeypatch.setattr(attribute_writers, "user_modules", lambda: [{"__file__": user_program.FILE, "torch": torch}])
    source = PROGRAM.replace("OTHER", other)
    origin = user_program.found(source, lambda: attribute_writers.written_bad(state.weight), state=state)
    if not is_sure:
        assert origin is None
        return
    assert (origin.op, origin.phase, origin.tensor) == ("aten.div", "input", "state.weight")
    assert origin.line == "user_program.py:6 in focus: share = errors / errors.sum()"

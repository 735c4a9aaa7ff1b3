"""What a function that has ended has written into an attribute of an object, which a later step takes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.origin.locate import leaf_origin
from finitune.monitor.probes.finite import places
from finitune.monitor.probes.modules import Modules
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
    ("def scale(total): state.weight.div_(total)", False),
    ("def scale(total): state.weight[0] = 1 / total", False),
    ("def scale(total): state.weight[1:] /= total", False),
    ("def average(rows): state.weight.copy_(rows.mean(0))", True),
    ("def forget(): state.weight[0] = float('nan')", False),
    ("def forget(): state.weight = torch.full((3,), torch.nan)", False),
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


AVERAGES = """
def start(z):
    chosen = [z[0]]
    chosen.append(z[torch.cdist(z, torch.stack(chosen)).argmax()])
    state.means.copy_(torch.stack(chosen))

def refresh(z, owner):
    for k in range(2):
        mine = z[owner == k]
        state.means[k] = mine.mean(0)
    state.share.copy_(torch.bincount(owner) / len(z))
found()
"""


@pytest.mark.parametrize(("value", "is_sure"), [(math.nan, True), (math.inf, False)])
def test_the_mean_of_nothing_in_a_buffer(value, is_sure, monkeypatch):
    monkeypatch.setattr(attribute_writers, "user_modules", lambda: [{"__file__": user_program.FILE, "torch": torch}])
    bad = torch.full((2, 3), value)
    held = leaf_origin("parameter", "prior.means", bad, places(bad))
    origin = user_program.found(AVERAGES, lambda: attribute_writers.made_by_writers(held))
    assert (origin is not None) == is_sure
    if origin is not None:
        assert (origin.op, origin.phase, origin.tensor) == ("aten.mean", "input", "prior.means")
        assert origin.line == "user_program.py:10 in refresh: state.means[k] = mine.mean(0)"


CODEBOOK = """
class Quantiser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.ones(2, 3))
        self.counts = torch.zeros(2)

    def follow(self, z):
        self.codes.copy_(z.sum(0) / self.counts[:, None])

    def forward(self, z):
        CALL
        return z

seen.append(torch.nn.Sequential(Quantiser()))
found()
"""


@pytest.mark.parametrize(("call", "phase"), [("self.follow(z)", "forward"), ("pass", "input")])
def test_a_method_that_the_forward_calls_is_of_the_forward(call, phase, monkeypatch):
    source = CODEBOOK.replace("CALL", call)
    monkeypatch.setattr(attribute_writers, "user_modules", lambda: [{"__file__": user_program.FILE, "torch": torch}])
    bad = torch.full((2, 3), math.nan)
    held, seen = leaf_origin("parameter", "quantiser.codes", bad, places(bad)), []
    modules = Modules()

    def look():
        modules.add(seen[0])
        return attribute_writers.made_by_writers(held, modules)

    origin = user_program.found(source, look, seen=seen)
    assert (origin.op, origin.phase) == ("aten.div", phase)

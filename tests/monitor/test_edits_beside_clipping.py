"""Where a loop clips by torch, what else it does to its gradients is seen, before the clipping and after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.watch import watch
from finitune.recording import Recording

ZERO = 5


class Gated(nn.Module):
    """The gate has no gradient, but zeros, in the step ZERO."""

    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Linear(3, 3), nn.Linear(3, 1, bias=False)

    def forward(self, x, opened):
        return self.body(x).mean() + opened * self.gate(x).mean()


def even(model):
    for p in model.parameters():
        p.grad.mul_(0.5 / p.grad.norm())


def train(tmp_path, clip, *, before=False, after=False, begins=1):
    torch.manual_seed(0)
    model = Gated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        for step in range(1, 9):
            optimizer.zero_grad()
            model(torch.randn(4, 3), float(step != ZERO)).backward()
            if before and step >= begins:
                even(model)
            clip(model.parameters())
            if after and step >= begins:
                even(model)
            optimizer.step()
        (known,) = watched._optimizers
    return known, diagnose(tmp_path / "run").incidents


CLIPS = {
    "clips": lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
    "measures": lambda parameters: nn.utils.get_total_norm([p.grad for p in parameters]),
    "by value": lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("where", ["before", "after"])
def test_the_line_that_has_made_them_bad(tmp_path, clip, where):
    _, (incident,) = train(tmp_path, clip, **{where: True})
    assert incident.step == ZERO
    assert incident.origin is not None
    assert incident.origin.op == "aten.reciprocal"
    assert incident.origin.line.endswith("in even: p.grad.mul_(0.5 / p.grad.norm())")


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("where", ["before", "after"])
def test_the_first_time_is_no_fault_of_the_hardware(tmp_path, clip, where):
    """Nothing was kept of what the backward had left; that it was written to is known."""
    train(tmp_path, clip, **{where: True}, begins=ZERO)
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert "changed the gradients after the backward" in origin["why_not"]


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_stays_quiet_where_they_are_clipped_alone(tmp_path, clip):
    known, incidents = train(tmp_path, clip)
    assert not incidents
    assert not known.edits_gradients

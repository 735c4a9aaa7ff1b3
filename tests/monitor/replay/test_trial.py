"""A trial update is taken back with all that it has written, and refused before a copy is made where it is large."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from tests.monitor.steps import capture_of
from torch import nn

from finitune.monitor.probes.optimizers import kept_before
from finitune.monitor.replay import arms, trial
from finitune.monitor.replay.trial import trial_update


class Counting(torch.optim.Optimizer):
    """Keeps a number, a tensor and what it makes on its first step in its group, as fused and schedule-free ones do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "steps": 0, "sum": torch.zeros(2)})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            group["sum"] += 1
            group["first"] = True
            for p in group["params"]:
                p -= group["lr"] * p.grad


def test_what_groups_keep_is_taken_back():
    model = nn.Linear(4, 2)
    optimizer = Counting(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    (group,), held = optimizer.param_groups, optimizer.param_groups[0]["sum"]
    trial_update(optimizer, 1.0, [(p, p.grad) for p in model.parameters()], lambda: (1.0,))
    assert (group["steps"], group["sum"].tolist(), "first" in group) == (0, [0.0, 0.0], False)
    assert group["sum"] is held


class Windowed(torch.optim.Optimizer):
    """Keeps its last gradients in containers, in its state and beside it, and counts by itself."""

    def __init__(self, parameters, window=2):
        super().__init__(parameters, {"lr": 0.1})
        self.window, self.count, self.norms, self.last = window, 0, [torch.zeros(())], {}

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        self.state["steps"] = self.state.get("steps", 0) + 1
        self.norms.append(torch.ones(()))
        self.norms[0] += 1
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            recent = state.setdefault("recent", deque())
            recent.append(p.grad.square())
            recent[0].mul_(2)
            if len(recent) > self.window:
                recent.popleft()
            self.last[p] = p.grad.clone()
            p.sub_(p.grad / sum(recent).sqrt(), alpha=0.1)

    def kept(self):
        """All that it keeps, as numbers, and which objects hold it."""
        states = [self.state[p].get("recent", ()) for p in self.param_groups[0]["params"]]
        numbers = [[t.tolist() for t in held] for held in (*states, self.norms, self.last.values())]
        return (self.count, self.state.get("steps")), numbers, [id(t) for held in (*states, self.norms) for t in held]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_what_containers_and_attributes_keep_is_taken_back(steps):
    model = nn.Linear(4, 2)
    optimizer = Windowed(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    for _ in range(steps):
        optimizer.step()
    before, weights = optimizer.kept(), [p.tolist() for p in model.parameters()]
    trial_update(optimizer, 1.0, [(p, p.grad) for p in model.parameters()], lambda: (1.0,))
    assert optimizer.kept() == before
    assert [p.tolist() for p in model.parameters()] == weights
    kept = kept_before(optimizer, list(optimizer.param_groups[0]["params"]))
    optimizer.step()
    optimizer.step()
    kept.restore()
    optimizer.step()
    kept.restore()
    assert optimizer.kept() == before
    assert [p.tolist() for p in model.parameters()] == weights


def test_a_copy_in_float32_is_refused_before_it_is_made(monkeypatch):
    model = nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    setting = capture_of(model, lambda _: model(torch.ones(2, 8).bfloat16()).sum(), optimizer=optimizer)
    monkeypatch.setattr(trial, "MAX_BYTES", 3 * sum(p.nbytes for p in model.parameters()) // 2)
    with pytest.raises(ValueError, match="of this size"), arms.optimizer_float32(setting):
        pytest.fail("weights were copied")
    monkeypatch.setattr(trial, "MAX_BYTES", 2 * sum(p.nbytes for p in model.parameters()))
    with arms.optimizer_float32(setting):
        assert model.weight.dtype == torch.float32

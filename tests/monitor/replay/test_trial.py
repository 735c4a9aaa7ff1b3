"""A trial update is taken back with all that it has written, and refused before a copy is made where it is large."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.replay.steps import capture_of
from torch import nn

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

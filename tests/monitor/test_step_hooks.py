"""Hooks that the program has on the steps of an optimizer: what they change is judged, and they find the gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.watch import watch

BAD, STEPS = 4, 8
VALUES = [float("nan"), float("inf"), -float("inf")]


def train(run_dir, hooked, *, spoilt_batch=None, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=run_dir):
        handles = hooked(model, optimizer)
        for step in range(1, STEPS + 1):
            x = torch.randn(4, 3).to(dtype)
            if step == BAD and spoilt_batch is not None:
                x[1, 2] = spoilt_batch
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        for handle in handles:
            handle.remove()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    return model


@pytest.mark.parametrize("register", ["instance", "global"])
@pytest.mark.parametrize("value", VALUES)
def test_what_a_hook_makes_bad_is_discarded(tmp_path, value, register):
    calls = []

    def spoil(optimizer, args, kwargs):
        calls.append(1)
        if len(calls) == BAD:
            for group in optimizer.param_groups:
                group["params"][0].grad.mul_(value)

    def hooked(_, optimizer):
        return [
            optimizer.register_step_pre_hook(spoil)
            if register == "instance"
            else register_optimizer_step_pre_hook(spoil)
        ]

    model = train(tmp_path / "run", hooked)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.action) == (BAD, "skipped-step")
    assert all(p.isfinite().all() for p in model.parameters())
    assert len(calls) == STEPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", VALUES)
def test_hooks_find_the_gradients_of_a_step_that_is_discarded(tmp_path, value, dtype):
    before, after = [], []

    def hooked(model, optimizer):
        norm = lambda: [p.grad.norm().item() for p in model.parameters()]  # noqa: E731
        return [
            optimizer.register_step_pre_hook(lambda *_: before.append(norm())),
            optimizer.register_step_post_hook(lambda *_: after.append(norm())),
        ]

    model = train(tmp_path / "run", hooked, spoilt_batch=value, dtype=dtype)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.action) == (BAD, "skipped-step")
    assert all(p.isfinite().all() for p in model.parameters())
    assert len(before) == len(after) == STEPS


def test_a_hook_that_raises_leaves_no_hook_of_ours(tmp_path):
    def hooked(_, optimizer):
        def fails(*_):
            raise ValueError("once")

        handle = optimizer.register_step_pre_hook(fails)
        with pytest.raises(ValueError, match="once"):
            optimizer.step()
        handle.remove()
        return []

    train(tmp_path / "run", hooked)
    assert not diagnose(tmp_path / "run").incidents


def test_a_healthy_run_with_hooks_is_the_same_bit_for_bit(tmp_path):
    def hooked(model, optimizer):
        return [optimizer.register_step_pre_hook(lambda *_: [p.grad.mul_(0.5) for p in model.parameters()] and None)]

    watched = train(tmp_path / "run", hooked)
    torch.manual_seed(0)
    alone = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
    hooked(alone, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        alone(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(alone.parameters(), watched.parameters(), strict=True))

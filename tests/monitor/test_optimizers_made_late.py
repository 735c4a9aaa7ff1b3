"""Optimizers that a program makes for the gradients of its first backward, one for each parameter, as Pyro does."""

from __future__ import annotations

import math

import pytest
import torch

from finitune.monitor.process import Monitor
from finitune.recording import Recording

STEPS = 6


def trained(tmp_path, *, together=False, bad=0, later=0):
    """With a parameter that has no gradient before the step `later`. Returns the recording."""
    torch.manual_seed(0)
    mean, spread, late = (torch.ones(3, requires_grad=True) for _ in range(3))
    optimizers = {}
    monitor = Monitor(run_dir=tmp_path / "run", everything=True)
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 3)
        if step == bad:
            x[2, 1] = math.inf
        (x * spread - mean * (late if later and step >= later else 1)).square().mean().backward()
        parameters = [p for p in (mean, spread, late) if p.grad is not None]
        if together and not optimizers:
            optimizers[mean] = torch.optim.Adam(parameters, lr=0.05)
        for parameter in parameters:
            if not together and parameter not in optimizers:
                optimizers[parameter] = torch.optim.Adam([parameter], lr=0.05)
        for optimizer in optimizers.values():
            optimizer.step()
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    monitor.close()
    assert all(torch.isfinite(p).all() for p in (mean, spread, late))
    return Recording.load(tmp_path / "run")


@pytest.mark.parametrize("together", [False, True])
def test_they_step_in_the_first_step(tmp_path, together):
    recording = trained(tmp_path, together=together)
    assert recording.signals["loss"].steps.tolist() == list(range(1, STEPS + 1))
    assert recording.facts.optimizer.name == "Adam"


def test_each_of_them_is_made_just_before_it_steps(tmp_path):
    torch.manual_seed(0)
    one, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizers = {}
    monitor = Monitor(run_dir=tmp_path / "run", everything=True)
    for _ in range(STEPS):
        (torch.randn(16, 3) * one - other).square().mean().backward()
        norm = math.hypot(*(float(p.grad.norm()) for p in (one, other)))
        for parameter in (one, other):
            if parameter not in optimizers:
                optimizers[parameter] = torch.optim.Adam([parameter], lr=0.05)
            optimizers[parameter].step()
            parameter.grad = None
        norms = monitor._run.signals["grad_norm"].pairs()
        assert norms[-1] == (len(norms), pytest.approx(norm))
    monitor.close()
    assert monitor.step == STEPS


def test_one_that_is_made_in_a_later_step(tmp_path):
    assert trained(tmp_path, later=4).signals["loss"].steps.tolist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize("bad", [1, 3])
def test_a_bad_step_is_discarded_whichever_it_is(tmp_path, bad):
    recording = trained(tmp_path, bad=bad)
    assert [event["step"] for event in recording.events("incident")] == [bad]

"""Optimizers that a program makes for the gradients of its first backward, one for each parameter, as Pyro does."""

from __future__ import annotations

import math

import pytest
import torch

from finitune.monitor.process import Monitor
from finitune.recording import Recording

STEPS = 6


class Halved(torch.nn.Module):
    """A float16 layer that is trained after the float32 head."""

    def __init__(self):
        super().__init__()
        self.adapter, self.head = torch.nn.Linear(4, 4).half().requires_grad_(False), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.adapter(x.half()).float())


def test_the_facts_of_an_incident_are_those_of_the_optimizer_that_steps(tmp_path):
    """The header has those of the first one."""
    torch.manual_seed(0)
    model = Halved()
    with Monitor(run_dir=tmp_path / "run", everything=True):
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
        for step in range(1, STEPS + 1):
            if step == 4:
                model.adapter.requires_grad_(True)
                optimizer = torch.optim.AdamW(model.adapter.parameters(), lr=1e-3, foreach=False)
            x = torch.randn(8, 4)
            x[:, 0] = 0.0  # no gradient for its weights: 0 / (0 + 1e-8), which is 0/0 in float16
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if step < 6:
                optimizer.step()
    recording = Recording.load(tmp_path / "run")
    incident, *_ = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (4, "nonfinite-update")
    assert (incident["facts"]["optimizer"]["name"], incident["facts"]["optimizer"]["lr"]) == ("AdamW", 1e-3)
    assert incident["facts"]["precision"]["parameters"] == "float16"
    assert recording.facts.optimizer.name == "SGD"


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

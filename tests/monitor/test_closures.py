"""Optimizers of the program's own that climb on the gradients of before their closure, and descend on those after."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from finitune import watch
from finitune.recording import Recording

STEPS, BAD = 6, 4


class Climbing(torch.optim.Optimizer):
    """Sharpness-aware minimisation; its closure may compute the loss alone, or run the backward too."""

    def __init__(self, params, *, derives):
        super().__init__(params, {"lr": 0.05, "rho": 0.05})
        self.derives = derives

    def step(self, closure):
        group = self.param_groups[0]
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for p in group["params"]:
                self.state[p]["home"] = p.clone()
                p.add_(p.grad * (group["rho"] / norm))
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
            if self.derives:
                loss.backward()
        with torch.no_grad():
            for p in group["params"]:
                p.copy_(self.state[p]["home"])
                p.sub_(p.grad, alpha=group["lr"])
        return loss.detach()


def trained(*, derives, factor, run_dir=None):
    """Losses and weights; the loss of step `BAD` is multiplied with `factor`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = Climbing(model.parameters(), derives=derives)
    watched = watch(model, optimizer, run_dir=run_dir) if run_dir else None
    losses = []
    for step in range(1, STEPS + 1):
        x = torch.randn(8, 3)

        def loss_of(x=x, step=step):
            return (model(x) - x.sum(1, keepdim=True)).square().mean() * (factor if step == BAD else 1.0)

        def closure(loss_of=loss_of):
            loss = loss_of()
            if not derives:
                loss.backward()
            return loss

        optimizer.zero_grad()
        loss_of().backward()
        losses.append(float(optimizer.step(closure)))
    if watched is not None:
        watched.close()
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("derives", [True, False], ids=["its step runs the backward", "its closure does"])
def test_a_healthy_run_is_as_without_and_each_step_is_counted_once(tmp_path, derives, capfd):
    losses, weights = trained(derives=derives, factor=1.0, run_dir=tmp_path / "run")
    alone = trained(derives=derives, factor=1.0)
    assert losses == alone[0]
    assert all(map(torch.equal, weights, alone[1]))
    recording = Recording.load(tmp_path / "run")
    assert len(recording.signals["loss"]) == STEPS
    assert not recording.events("incident", "broken")
    assert capfd.readouterr().err.count("finitune:") == 1


@pytest.mark.parametrize("derives", [True, False], ids=["its step runs the backward", "its closure does"])
def test_a_climb_that_divides_by_nothing_is_taken_back_and_named(tmp_path, derives):
    _, weights = trained(derives=derives, factor=0.0, run_dir=tmp_path / "run")
    assert all(bool(weight.isfinite().all()) for weight in weights)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-update")
    origin = recording.events("origin")[-1]["origin"]
    assert (origin["op"], origin["phase"]) == ("aten.reciprocal", "optimizer")
    assert origin["line"].endswith('p.add_(p.grad * (group["rho"] / norm))')


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("derives", [True, False], ids=["its step runs the backward", "its closure does"])
def test_gradients_of_before_the_closure_that_are_bad_change_nothing(tmp_path, derives, factor):
    _, weights = trained(derives=derives, factor=factor, run_dir=tmp_path / "run")
    assert all(bool(weight.isfinite().all()) for weight in weights)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (BAD, "nonfinite-loss", "skipped-step")

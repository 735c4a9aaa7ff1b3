"""A closure that is evaluated several times in a step: a trial that a line search turns back from is no fault, and one
that the weights follow is said and undone.
"""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import nn

from finitune import watch
from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

STEPS = 3


class Well(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.w = nn.Parameter(torch.randn(3) * 3)

    def forward(self):
        return (torch.exp(self.w * self.w / 2) - 2).square().sum() + self.w.sum() ** 2


def trained(seed, run_dir=None):
    """The losses, the weights, and how many evaluations had gradients that are not finite."""
    model, bad, losses = Well(seed), [], []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=30.0, max_iter=8, line_search_fn="strong_wolfe")
    watched = watch(model, optimizer, run_dir=run_dir) if run_dir else None

    def closure():
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        bad.append(not bool(model.w.grad.isfinite().all()))
        return loss

    for _ in range(STEPS):
        losses.append(float(optimizer.step(closure).detach()))
    if watched is not None:
        watched.close()
    return losses, model.w.detach().tolist(), sum(bad)


def test_a_trial_that_the_line_search_turns_back_from_is_left_alone(tmp_path, capfd):
    alone = trained(2)
    assert alone[2], "it has tried a step that is not finite"
    assert trained(2, tmp_path / "run") == alone
    assert diagnose(tmp_path / "run").verdict == "healthy"
    assert capfd.readouterr().err.count("finitune:") == 1


def test_one_that_the_weights_follow_is_undone_and_said(tmp_path, capfd):
    losses, weights, _ = trained(1)
    assert any(math.isnan(each) for each in weights)
    kept, weights, _ = trained(1, tmp_path / "run")
    assert all(map(math.isfinite, weights))
    first = next(n for n in range(STEPS) if n + 1 == STEPS or not math.isfinite(losses[n + 1]))
    assert kept[: first + 1] == losses[: first + 1]
    recording = Recording.load(tmp_path / "run")
    incident = recording.events("incident")[0]
    assert (incident["step"], incident["action"]) == (first + 1, "skipped-step")
    assert recording.events("origin")[0]["origin"]["op"] == "aten.exp"
    assert "Update discarded" in capfd.readouterr().err


class Estimates(torch.optim.Optimizer):
    """Keeps an estimate of the distance beside its state, as optimizers without a learning rate do."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.distance, self.calls = torch.tensor(1e-2), 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        moved = sum(p.grad.abs().sum() for group in self.param_groups for p in group["params"])
        self.distance = self.distance * (moved / moved).clamp(0.5, 1.0)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.distance * p.grad)


def test_what_an_optimizer_keeps_beside_its_state_is_undone_too(tmp_path):
    """A step without any gradient divides 0 by 0; the next one is as if it had not been."""
    model = nn.Linear(2, 1)
    optimizer = Estimates(model.parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for weight in (1.0, 0.0, 1.0):
            optimizer.zero_grad()
            (model(torch.ones(3, 2)).square().mean() * weight).backward()
            optimizer.step()
    assert (optimizer.distance, optimizer.calls) == (torch.tensor(1e-2), 2)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [2]
    assert recording.events("origin")[0]["origin"]["op"] == "aten.div"


class ByFiniteDifferences(torch.optim.Optimizer):
    """Its closure is given what it computes the loss of, also within a transform, and no backward is run."""

    def __init__(self, parameters, rate=0.1):
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure):
        (weight,) = self.param_groups[0]["params"]
        loss = closure(weight, power=0.5)
        weight.grad = torch.func.jacfwd(lambda w: closure(w, power=0.5))(weight)
        closure(weight - 1e-3 * weight.grad, power=0.5)
        weight.sub_(self.param_groups[0]["lr"] * weight.grad)
        return loss


@pytest.mark.parametrize("bad", [0, 5])
def test_a_closure_that_is_given_arguments(tmp_path, bad):
    def trained(watched):
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer, losses = ByFiniteDifferences(model.parameters()), []
        with watch(model, optimizer, run_dir=tmp_path) if watched else contextlib.nullcontext():
            for step in range(1, 9):
                x = torch.full((2, 3), 0.0 if step == bad else float(step))
                losses.append(float(optimizer.step(lambda w, *, power, x=x: (x @ w.T).abs().pow(power).sum())))
        return model.weight.detach().clone(), losses

    weight, losses = trained(watched=True)
    recording = Recording.load(tmp_path)
    assert not recording.events("broken")
    assert [incident["step"] for incident in recording.events("incident")] == ([bad] if bad else [])
    assert recording.signals["grad_norm"].last_step == 8
    assert bool(weight.isfinite().all())
    if not bad:
        plain, expected = trained(watched=False)
        assert torch.equal(weight, plain)
        assert losses == expected


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_closure_that_computes_nothing(tmp_path, kind, value):
    """As Lightning gives one where the loop has run the backward by itself."""
    model = torch.nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path):
        for step in range(1, 7):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            if step == 4:
                model.weight.grad[0, 1] = value
            before = model.weight.detach().clone()
            optimizer.step(lambda: None)
            assert torch.equal(model.weight, before) == (step == 4)
    recording = Recording.load(tmp_path)
    assert not recording.events("broken")
    assert [(one["step"], one["action"]) for one in recording.events("incident")] == [(4, "skipped-step")]

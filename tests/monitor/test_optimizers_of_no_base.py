"""Optimizers that are no class of torch's: a bad update is undone and located as that of any other."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


class OfNoBase:
    """Its own class; what it keeps is a list, a number and a dictionary that is made anew."""

    def __init__(self, parameters):
        self.parameters, self.steps, self.state = list(parameters), 0, {}
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.rate = lambda n: 0.01 / n

    def step(self, closure=None):
        loss = None if closure is None else closure()
        self.steps += 1
        self.state = {"steps": self.steps}
        print(f"step {self.steps}")
        with torch.no_grad():
            for p, square in zip(self.parameters, self.squares, strict=True):
                square.mul_(0.5).add_(p.grad * p.grad)
                p -= self.rate(self.steps) * p.grad / square.sqrt()
        return loss


def train_with_own_class(directory, with_closure, optimizer_of=OfNoBase, bad=6):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    optimizer = optimizer_of(model.parameters())
    idle = nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=directory):
        for step in range(1, 9):

            def closure(step=step):
                model.weight.grad = None
                loss = (model(torch.ones(2, 4)) - 1).square().mean()
                loss.backward()
                if step == bad:  # what was never used
                    optimizer.squares[0].zero_()
                    model.weight.grad[0, 1] = 0.0
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    return model, optimizer, Recording.load(directory)


@pytest.mark.parametrize(("with_closure", "bad"), [
    (False, 1), (False, 6), (True, 6),  # the first step shows that it is an optimizer; with a closure the second one
])  # fmt: skip
def test_the_update_of_a_class_of_the_programs_own_is_undone_and_its_operator_named(
    tmp_path, with_closure, bad, capsys
):
    model, optimizer, recording = train_with_own_class(tmp_path / "run", with_closure, bad=bad)
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (bad, "nonfinite-update", "skipped-step")
    (origin,) = (event["origin"] for event in recording.events("origin"))
    assert (origin["phase"], origin["op"]) == ("optimizer", "aten.div")
    assert "p -= self.rate" in origin["line"]
    assert model.weight.isfinite().all()
    assert (optimizer.steps, optimizer.state) == (7, {"steps": 7})
    assert capsys.readouterr().out.count(f"step {bad}\n") == 2  # as it has run, and as the step after it


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_of_the_closure_of_an_own_class_changes_nothing(tmp_path, bad):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    optimizer = OfNoBase(model.parameters())
    idle = nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        for step in range(1, 9):
            x = torch.full((2, 4), bad if step == 6 else 1.0)

            def closure(x=x):
                model.weight.grad = None
                loss = (model(x) - 1).square().mean()
                loss.backward()
                return loss

            if step == 6:
                before = model.weight.detach().clone(), optimizer.squares[0].clone()
            optimizer.step(closure)
            if step == 6:
                assert torch.equal(model.weight, before[0])
                assert torch.equal(optimizer.squares[0], before[1])
    recording = Recording.load(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["action"]) == (6, "skipped-step")


class OfNoBaseWithHistory(OfNoBase):
    """Keeps what cannot be put back."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.history = io.StringIO()


@pytest.mark.parametrize("with_closure", [False, True])
def test_what_cannot_be_put_back_whole_is_not_put_back(tmp_path, with_closure):
    model, _, recording = train_with_own_class(tmp_path / "run", with_closure, OfNoBaseWithHistory)
    assert not recording.events("broken")
    first, *_ = recording.events("incident")
    assert (first["step"], first["action"]) == (6, "none")
    assert not model.weight.isfinite().all()


@dataclass(slots=True)
class Moments:
    mean: torch.Tensor
    square: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rates:
    lr: float = 0.01
    beta: float = 0.9


@dataclass(slots=True)
class OfSlots:
    """It allows no weak reference, and keeps its moments in objects of their own."""

    rates: Rates
    params: list[nn.Parameter]
    moments: list[Moments] = field(init=False)

    def __post_init__(self):
        self.moments = [Moments(torch.zeros_like(p), torch.zeros_like(p)) for p in self.params]

    @torch.no_grad()
    def step(self, age):
        bias = 1.0 - self.rates.beta**age
        for p, kept in zip(self.params, self.moments, strict=True):
            kept.mean.mul_(self.rates.beta).add_(p.grad, alpha=1 - self.rates.beta)
            kept.square = 0.9 * kept.square + 0.1 * p.grad.square()
            mean = kept.mean / bias
            p.sub_(self.rates.lr * mean / (kept.square.sqrt() + 1e-8))


def test_an_optimizer_of_slots_that_keeps_its_moments_in_objects(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    optimizer = OfSlots(Rates(), list(model.parameters()))
    idle, kept = nn.Linear(1, 1), []
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        for step in range(1, 9):
            model.weight.grad = None
            (model(torch.ones(2, 4)) - 1).square().mean().backward()
            optimizer.step(age=step % 6)
            kept.append((optimizer.moments[0].mean.clone(), optimizer.moments[0].square))
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (6, "nonfinite-update", "skipped-step")
    origin = recording.events("origin")[-1]["origin"]
    assert (origin["op"], origin["phase"]) == ("aten.div", "optimizer")
    assert origin["line"].endswith("mean = kept.mean / bias")
    assert torch.equal(kept[5][0], kept[4][0])
    assert kept[5][1] is kept[4][1]
    assert model.weight.isfinite().all()

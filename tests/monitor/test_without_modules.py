"""Programs that train tensors without a module, by a backward or by `torch.autograd.grad`."""

import math

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.process import Monitor
from finitune.monitor.watch import watch
from finitune.recording import Recording

OUTLIER = 4.0e3


def mixture(tmp_path):
    torch.manual_seed(0)
    mean, spread = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([mean, spread], lr=0.05)
    with watch(torch.nn.Module(), optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            x = torch.randn(5)
            if step == 3:
                x[2] = OUTLIER
            density = torch.exp(-0.5 * ((x[:, None] - mean) / spread.exp()) ** 2).sum(1)
            nll = -density.log().mean()
            optimizer.zero_grad()
            nll.backward()
            optimizer.step()
    return Recording.load(tmp_path / "run")


def test_loose_tensors_are_located_down_to_the_line(tmp_path):
    (origin,) = (event["origin"] for event in mixture(tmp_path).events("origin"))
    assert (origin["op"], origin["phase"], origin["values"]) == ("aten.log", "forward", "1 -inf")
    assert origin["line"].endswith("nll = -density.log().mean()")


def unoptimized(tmp_path):
    """The loop updates by itself, if it does."""
    return watch(torch.nn.Module(), torch.optim.SGD([torch.zeros(1)]), run_dir=tmp_path / "run", mode="observe")


def test_a_derivative_that_data_are_made_with_is_no_step(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    with unoptimized(tmp_path):
        x = torch.randn(8, 4, requires_grad=True)
        (target,) = torch.autograd.grad(x.sin().sum(), x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, 5):
            loss = (model(x.detach()) - target.sum(1, keepdim=True)).square().mean() * (torch.inf if step == 3 else 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.events("incident")[0]["step"] == 3
    assert recording.signals["loss"].pairs()[0][0] == 1
    assert recording.signals["loss"].pairs()[-1][0] == 4


def test_the_first_of_several_is_a_step(tmp_path):
    with unoptimized(tmp_path):
        place = torch.randn(4)
        for step in range(1, 5):
            x = place.detach().requires_grad_()
            (slope,) = torch.autograd.grad(x.square().sum() * (torch.inf if step == 1 else 1.0), x)
            place = torch.where(slope.isfinite(), place - 0.1 * slope, place)
    assert [event["step"] for event in Recording.load(tmp_path / "run").events("incident")] == [1]


def test_autograd_grad_is_located(tmp_path):
    torch.manual_seed(0)
    w = torch.randn(4, 6, requires_grad=True)
    with unoptimized(tmp_path):
        for step in range(1, 5):
            x = torch.randn(5, 6)
            if step == 3:
                x[1] = 0.0
            loss = (x @ w.T).square().mean(1).sqrt().sum()
            (gradient,) = torch.autograd.grad(loss, (w,))
            w = (w - 0.01 * gradient.nan_to_num()).detach().requires_grad_()
    origin = [event["origin"] for event in Recording.load(tmp_path / "run").events("origin")][-1]
    assert (origin["op"], origin["phase"]) == ("aten.div", "backward")
    assert "sqrt().sum()" in origin["line"]


class NewtonSteps:
    """Solves for each update with products of the Hessian, derived one by one."""

    def __init__(self, weights):
        self.weights = weights

    def step(self, loss):
        gradients = torch.autograd.grad(loss, self.weights, create_graph=True)
        curvatures = [
            torch.autograd.grad(gradient.sum(), weight, retain_graph=True)[0]
            for gradient, weight in zip(gradients, self.weights, strict=True)
        ]
        for weight, gradient, curvature in zip(self.weights, gradients, curvatures, strict=True):
            weight.data -= 0.5 * gradient.detach() / curvature


@pytest.mark.slow
@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf, -torch.inf])
def test_derivatives_of_a_derivative_belong_to_its_step(tmp_path, bad):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    newton = NewtonSteps(list(model.parameters()))
    x = torch.randn(16, 3)
    with unoptimized(tmp_path):
        for step in range(1, 7):
            if step == 4 and bad is not None:
                x = x.clone()
                x[2] = bad
            newton.step(torch.cosh(model(x)).mean())
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["loss"].last_step == 6
    incidents = [event["step"] for event in recording.events("incident")]
    assert incidents[:1] == ([] if bad is None else [4])


def test_losses_that_are_derived_by_turns_are_steps_where_weights_change_between(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    with unoptimized(tmp_path):
        for step in range(6):
            loss = (weight * torch.arange(3.0)).square().sum()
            (gradient,) = torch.autograd.grad(loss, weight, create_graph=step % 3 == 0)
            weight.data -= 0.01 * gradient.detach()
    assert Recording.load(tmp_path / "run").signals["loss"].last_step == 6


def test_a_derivative_within_the_step_of_an_optimizer_is_no_step(tmp_path):
    """The inner steps of MAML keep their graph, which the outer loss is derived through."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with watch(torch.nn.Module(), optimizer, run_dir=tmp_path / "run"):
        for _ in range(4):
            (inner,) = torch.autograd.grad((weight - torch.randn(3)).square().sum(), weight, create_graph=True)
            optimizer.zero_grad()
            (weight - 0.1 * inner).square().sum().backward()
            optimizer.step()
    assert Recording.load(tmp_path / "run").signals["loss"].last_step == 4


GIVEN = """
class Momentum:
    def __init__(self, weights):
        self.weights, self.rate = weights, 0.05
        self.velocity = {k: torch.zeros_like(w) for k, w in weights.items()}
        self.calls = 0

    @torch.no_grad()
    def step(self, gradients):
        self.calls += 1
        for k, w in self.weights.items():
            self.velocity[k].mul_(0.8).add_(gradients[k])
            w.sub_(self.rate * self.velocity[k])

def objective(weights, x, factor):
    return ((x @ weights["w"] + weights["b"] - x.sum(1)) * factor).square().mean().sqrt()

def asked(weights, x, factor):
    return dict(zip(weights, torch.autograd.grad(objective(weights, x, factor), list(weights.values()))))

derived = torch.func.grad(objective)
weights = {"w": torch.zeros(3), "b": torch.ones(1)}
if HOW is not None:
    weights = {k: w.requires_grad_() for k, w in weights.items()}
rule = Momentum(weights)
torch.manual_seed(0)
for n in range(1, STEPS + 1):
    x = torch.randn(6, 3)
    gradients = (derived if HOW is None else asked)(weights, x, 1.0 if n not in BAD else 0.0)
    rule.step(gradients)
print(*(float(w.detach().double().sum()) for w in weights.values()), rule.calls)
"""


def given(directory, how, bad, mode="guard"):
    with Monitor(run_dir=directory, everything=True, mode=mode):
        user_program.run(GIVEN, __name__="stranger", torch=torch, HOW=how, STEPS=12, BAD=bad)
    return Recording.load(directory)


@pytest.mark.parametrize("how", [None, "asked"], ids=["torch.func", "autograd.grad"])
def test_an_object_that_is_given_bad_gradients_is_not_called(tmp_path, how, capsys):
    recording = given(tmp_path / "run", how, [7])
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (7, "nonfinite-gradient", "skipped-step")
    *sums, calls = capsys.readouterr().out.split()
    assert all(math.isfinite(float(each)) for each in sums)
    assert calls == "11"


@pytest.mark.parametrize("how", [None, "asked"], ids=["torch.func", "autograd.grad"])
def test_one_that_is_given_finite_ones_is_left_alone(tmp_path, how, capsys):
    assert not given(tmp_path / "run", how, []).events("incident", "broken")
    seen = capsys.readouterr().out
    user_program.run(GIVEN, torch=torch, HOW=how, STEPS=12, BAD=[])
    assert capsys.readouterr().out == seen


def test_one_that_is_observed_is_called_with_bad_gradients(tmp_path, capsys):
    recording = given(tmp_path / "run", "asked", [12], mode="observe")
    assert recording.events("incident")[0]["action"] == "none"
    assert capsys.readouterr().out.split()[-1] == "12"

"""A model that transforms of torch.func call: its arguments have no values outside of them."""

from __future__ import annotations

import pytest
import torch
from tests.monitor import user_program
from torch import nn
from torch.func import functional_call, jacrev, vmap

from finitune.monitor.process import Monitor, Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


def volume(model, params, x):
    def push(p, one):
        return functional_call(model, p, (one,))

    jacobian = vmap(jacrev(push, argnums=1), in_dims=(None, 0))(params, x)
    determinant = jacobian[:, 0, 0] * jacobian[:, 1, 1] - jacobian[:, 0, 1] * jacobian[:, 1, 0]
    return determinant.abs().log().mean() - vmap(push, in_dims=(None, 0))(params, x).square().mean()


def train(directory, model):
    params = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 2)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 12):
            model[1].negative_slope = 0.5 if step < BAD else 0.0
            optimizer.zero_grad()
            loss = -volume(model, params, x)
            loss.backward()
            optimizer.step()


def test_a_model_under_vmap_is_watched_and_located(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.5))
    with pytest.raises(Stopped):
        train(tmp_path / "run", model)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert recording.events("incident")[0]["step"] == BAD
    origin = recording.events("origin")[0]["origin"]
    assert origin["op"] == "aten.log"
    assert "determinant.abs().log()" in origin["line"]
    assert all(p.isfinite().all() for p in model.parameters())


OF_EACH = """
weights = torch.rand(3, 4) + 0.5
def loss(w, x):
    return ((w * x).sum() - 1) ** 2 + w.abs().log().sum()
of_each = vmap(vmap(AND_VALUE, in_dims=(None, 0)), in_dims=(0, None))
x = torch.rand(6, 4)
for n in range(6):
    found = of_each(weights if n < BAD - 1 else weights * 0, x)
    gradients = found[0] if isinstance(found, tuple) else found
    weights = weights - 0.01 * gradients.mean(1)
"""


@pytest.mark.parametrize("transform", ["grad_and_value(loss)", "grad(loss)"])
def test_derivatives_under_vmap_are_steps(tmp_path, transform):
    idle = nn.Linear(1, 1)
    with pytest.raises(Stopped), watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        user_program.run(OF_EACH.replace("AND_VALUE", transform), torch=torch, BAD=BAD, **vars(torch.func))
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    incident = recording.events("incident")[0]
    assert (incident["step"], len(recording.signals["loss"])) == (BAD, BAD + 2)
    assert recording.events("origin")[0]["origin"]["op"] == "aten.log"


ON_THE_SPOT = """
weights = torch.rand(4) + 0.5
def loss(w, x):
    return ((w * x).sum() - 1) ** 2 + (w.abs() * x).log().sum()
batches = [(torch.rand(4) + 0.1 if n + 1 != BAD else torch.zeros(4),) for n in range(6)]
for batch in batches:
    gradient, value = grad_and_value(loss)(weights, *batch)
    weights = weights - 0.01 * gradient.nan_to_num(0, 0, 0)
"""


def test_a_transform_that_is_called_where_it_is_made(tmp_path):
    idle = nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        user_program.run(ON_THE_SPOT, torch=torch, BAD=BAD, grad_and_value=torch.func.grad_and_value)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert recording.events("incident")[0]["step"] == BAD
    origin = recording.events("origin")[0]["origin"]
    assert origin["op"] == "aten.log"
    assert origin["line"].endswith("return ((w * x).sum() - 1) ** 2 + (w.abs() * x).log().sum()")


DRAWN = """
weights = {"w": torch.rand(4) + 0.5}
def loss(weights, x):
    return ((weights["w"] * x).sum() - 1) ** 2 + (weights["w"].abs() * x).log().sum()
def batch(n):
    return (torch.rand(4) + 0.1) * (n + 1 != BAD)
kept = grad_and_value(loss)
for n in range(BAD + 2):
    gradients, value = CALLED(weights, batch(n))
    for name in weights:
        weights[name] = weights[name] - 0.01 * gradients[name]
"""


@pytest.mark.parametrize("called", ["grad_and_value(loss)", "kept"])
def test_arguments_that_are_computed_in_the_call_are_those_that_it_was_given(tmp_path, called):
    """A batch that is drawn; weights that the loop then overwrites."""
    idle = nn.Linear(1, 1)
    with pytest.raises(Stopped), watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        user_program.run(
            DRAWN.replace("CALLED", called), torch=torch, BAD=BAD, grad_and_value=torch.func.grad_and_value
        )
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert recording.events("incident")[0]["step"] == BAD
    origin = recording.events("origin")[0]["origin"]
    assert (origin["op"], origin["phase"]) == ("aten.log", "forward")
    assert '(weights["w"].abs() * x).log().sum()' in origin["line"]


OF_A_MODULE = """
class Scale(nn.Module):
    def forward(self, x):
        calls.append(1)
        return x.abs().log()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.out = Scale(), nn.Linear(4, 1)
    def forward(self, x):
        return self.out(self.scale(x)).sum()

model = Model()
weights = {name: p.detach().clone() for name, p in model.named_parameters()}
def loss(weights, x):
    return functional_call(model, weights, (x,)) ** 2
step = grad_and_value(loss)
for n in range(BAD + 2):
    gradients, value = step(weights, (torch.rand(2, 4) + 0.1) * (n + 1 < BAD))
    weights = {name: w - 0.01 * gradients[name] for name, w in weights.items()}
"""


def test_a_module_with_weights_of_the_loop_is_named_and_its_forward_not_called_again(tmp_path):
    idle = nn.Linear(1, 1)
    transforms = {"functional_call": functional_call, "grad_and_value": torch.func.grad_and_value}
    with pytest.raises(Stopped), watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1), run_dir=tmp_path / "run"):
        user_program.run(OF_A_MODULE, nn=nn, torch=torch, calls=(calls := []), BAD=BAD, __name__="own", **transforms)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    incident = recording.events("incident")[0]
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-loss")
    origin = recording.events("origin")[0]["origin"]
    assert (origin["op"], origin["module"]) == ("aten.log", "scale")
    assert origin["line"].endswith("in forward: return x.abs().log()")
    assert len(calls) == BAD + 2


ROOT = """
weights = {"w": torch.zeros(3), "b": torch.ones(1)}
def objective(weights, x, factor):
    missed = (x @ weights["w"] + weights["b"]).square() * factor
    return torch.tanh(missed.mean().sqrt())
derive = torch.func.grad_and_value(objective)
for n in range(1, STEPS):
    g, loss = derive(weights, x, float(n != BAD))
    weights = {k: v - 0.01 * g[k] for k, v in weights.items()}
"""


def test_the_operator_of_a_gradient_that_a_transform_makes_bad_of_a_finite_loss(tmp_path):
    with pytest.raises(Stopped), Monitor(run_dir=tmp_path / "run", everything=True):
        user_program.run(ROOT, torch=torch, x=torch.ones(5, 3), STEPS=9, BAD=BAD)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    incident = recording.events("incident")[0]
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    origin = recording.events("origin")[0]["origin"]
    assert origin["phase"] == "backward"
    assert origin["line"].endswith("in objective: return torch.tanh(missed.mean().sqrt())")

"""Weights that the program's own statements write: the step and the statement that spoilt them, and healthy ones."""

import math

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.process import Monitor, Stopped
from finitune.recording import Recording

BAD, STEPS = 5, 9

OPENING = """
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
other = torch.nn.Parameter(torch.rand(4))
velocity = [torch.zeros_like(p) for p in net.parameters()]
x = torch.randn(STEPS + 1, 8, 3)
def loss_of(n):
    return (net(x[n]) - x[n].sum(1, keepdim=True)).square().mean()
"""

WITHOUT_OPTIMIZER = """
for n in range(1, STEPS + 1):
    loss = loss_of(n) * (n != BAD)
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.05 * p.grad / p.grad.norm()
            p.grad = None
"""
OWN_ADAM = """
def update():
    for p, v in zip(net.parameters(), velocity):
        v.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
        p.data = p.data - 0.01 * p.grad / v.sqrt()
def run():
    for n in range(1, STEPS + 1):
        if n == BAD:
            for v in velocity:
                v.zero_()
        loss = loss_of(n) * (n != BAD)
        for p in net.parameters():
            p.grad = None
        loss.backward()
        update()
run()
"""
ASKED = """
w = torch.zeros(3, requires_grad=True)
for n in range(1, STEPS + 1):
    loss = (x[n] @ w - x[n].sum(1)).square().mean() * (n != BAD)
    (g,) = torch.autograd.grad(loss, [w])
    w = (w - 0.1 * g / g.abs().max()).detach().requires_grad_()
"""
FUNCTIONAL = """
weights = {"w": torch.zeros(3), "b": torch.zeros(1)}
def objective(weights, x, factor):
    return factor * (x @ weights["w"] + weights["b"] - x.sum(1)).square().mean()
derive = torch.func.grad_and_value(objective)
for n in range(1, STEPS + 1):
    g, loss = derive(weights, x[n], float(n != BAD))
    weights = {k: weights[k] - 0.05 * g[k] / g[k].norm() for k in weights}
"""
INFINITE_ALONE = """
weights = {"w": torch.zeros(3)}
def objective(weights, x):
    return (x @ weights["w"] - x.sum(1)).square().mean()
derive = torch.func.grad_and_value(objective)
for n in range(1, STEPS + 1):
    g, loss = derive(weights, x[n])
    scatter = {k: x[n].std() * (n != BAD) for k in weights}
    weights = {k: weights[k] - 0.05 * g[k] / scatter[k] for k in weights}
"""
AFTER_A_STEP = """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
def project():
    with torch.no_grad():
        net[0].weight.div_(net[0].weight.norm(dim=1, keepdim=True))
for n in range(1, STEPS + 1):
    opt.zero_grad()
    loss_of(n).backward()
    opt.step()
    if n == BAD:
        net[0].weight.data[2] = 0
    project()
"""
BESIDE_AN_OPTIMIZER = """
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.factors = torch.nn.Parameter(torch.rand(4))
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) * self.factors)
scaled = Scaled()
opt = torch.optim.SGD([*scaled.first.parameters(), *scaled.second.parameters()], lr=0.05)
def multiply(p, rate):
    with torch.no_grad():
        ratio = rate / (p.grad * p.grad).sum()
        p.mul_(torch.exp(-ratio * p.grad))
for n in range(1, STEPS + 1):
    loss = (scaled(x[n]) - x[n].sum(1, keepdim=True)).square().mean() * (n != BAD)
    scaled.zero_grad()
    loss.backward()
    opt.step()
    multiply(scaled.factors, 1e-6)
"""
TWO_MERGED = """
nets = [torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 1, bias=False)]
opts = [torch.optim.SGD(one.parameters(), lr=0.05) for one in nets]
def merge(one, two, factor):
    with torch.no_grad():
        for a, b in zip(one.parameters(), two.parameters()):
            between = factor * (a + b) / (2 * factor)
            a.copy_(between)
            b.copy_(between)
for n in range(1, STEPS + 1):
    for k, (one, opt) in enumerate(zip(nets, opts)):
        loss = (one(x[n]) - x[n].sum(1, keepdim=True) * (k + 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    merge(*nets, float(n != BAD))
"""
WITH_NOISE = """
weights = {"w": torch.zeros(4, 3), "b": torch.zeros(4, 1)}
weights = {k: v + 0.1 for k, v in weights.items()}
def objective(weights, x):
    return (weights["w"] @ x.T + weights["b"] - x.sum(1)).square().mean(1).sum()
derive = torch.func.grad_and_value(objective)
for n in range(1, STEPS + 1):
    g, loss = derive(weights, x[n])
    score = torch.ones(4, 1) * (n != BAD)
    share = score / score.sum()
    moved = {}
    for k, v in weights.items():
        middle = (share * v).sum(0, keepdim=True)
        moved[k] = v - 0.05 * g[k] - 0.1 * (v - middle) + 0.01 * torch.randn_like(v)
    weights = moved
"""
EMPTIED = """
class Shadow:
    def __init__(self):
        self.count, self.mean = 0, [torch.zeros_like(p) for p in net.parameters()]
    @torch.no_grad()
    def follow(self):
        self.count += 1
        for m, p in zip(self.mean, net.parameters()):
            m.mul_(0.8).add_(p, alpha=0.2)
    @torch.no_grad()
    def settle(self):
        share = 1 - 0.8 ** self.count
        for m, p in zip(self.mean, net.parameters()):
            p.copy_(m / share)
            m.zero_()
        self.count = 0
opt = torch.optim.SGD(net.parameters(), lr=0.05)
shadow = Shadow()
for n in range(1, STEPS + 1):
    opt.zero_grad()
    loss_of(n).backward()
    opt.step()
    shadow.follow()
    if n % 3 == 0:
        shadow.settle()
    if n == BAD:
        shadow.settle()
        shadow.settle()
"""
PROGRAMS = {
    "with noise": (WITH_NOISE, "share = score / score.sum()"),
    "two of two optimizers": (TWO_MERGED, "between = factor * (a + b) / (2 * factor)"),
    "without an optimizer": (WITHOUT_OPTIMIZER, "p -= 0.05 * p.grad / p.grad.norm()"),
    "an Adam of its own": (OWN_ADAM, "p.data = p.data - 0.01 * p.grad / v.sqrt()"),
    "asked for": (ASKED, "w = (w - 0.1 * g / g.abs().max())"),
    "functional": (FUNCTIONAL, "weights = {k: weights[k] - 0.05"),
    "functional, infinite alone": (INFINITE_ALONE, "weights = {k: weights[k] - 0.05"),
    "after a step": (AFTER_A_STEP, "net[0].weight.div_(net[0].weight.norm("),
    "an average that is emptied": (EMPTIED, "p.copy_(m / share)"),
    "beside an optimizer": (BESIDE_AN_OPTIMIZER, "ratio = rate / (p.grad * p.grad).sum()"),
}


def run(source, directory, **more):
    given = {"torch": torch, "STEPS": STEPS, "BAD": BAD, **more}
    with Monitor(run_dir=directory, everything=True):
        user_program.run(OPENING + source, **given)
    return Recording.load(directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_step_and_the_statement_that_spoilt_them(tmp_path, name):
    source, line = PROGRAMS[name]
    with pytest.raises(Stopped):
        run(source, tmp_path / "run")
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    incident = recording.events("incident")[0]
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-update")
    origin = recording.events("origin")[0]["origin"]
    assert origin["phase"] == "optimizer"
    assert origin["op"].rstrip("_") in ("aten.div", "aten.reciprocal")
    assert line in origin["line"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_finite_ones_are_left_alone(tmp_path, name):
    recording = run(PROGRAMS[name][0], tmp_path / "run", BAD=-1)
    assert not recording.events("broken")
    assert not recording.events("incident")
    assert len(recording.signals["loss"]) == STEPS


UNUSED = """
table = torch.nn.Embedding(6, 2)
sgd = torch.optim.SGD(table.parameters(), lr=0.1)
for n in range(1, STEPS + 1):
    sgd.zero_grad()
    table(torch.arange(5)).square().mean().backward()
    sgd.step()
    if n == WHEN:
        table.weight.data[5] = VALUE
"""


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when", [BAD, STEPS])
def test_weights_that_no_later_step_uses(tmp_path, value, when):
    recording = run(UNUSED, tmp_path / "run", VALUE=value, WHEN=when)
    (incident,) = recording.events("incident")
    assert incident["step"] == when
    assert incident["bad"] == ["weight"]


TOP = """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for n in range(1, STEPS + 1):
    with torch.no_grad():
        net[2].weight.div_(net[2].weight.norm() * (n != BAD))
    opt.zero_grad()
    loss_of(n).backward()
    opt.step()
"""


@pytest.mark.slow
def test_a_statement_before_the_forward_belongs_to_its_step(tmp_path):
    with pytest.raises(Stopped):
        run(TOP, tmp_path / "run")
    recording = Recording.load(tmp_path / "run")
    assert recording.events("incident")[0]["step"] == BAD
    assert "net[2].weight.div_" in recording.events("origin")[0]["origin"]["line"]


NOT_IN_THE_LOOP = """
table = torch.nn.Embedding(6, 2)
sgd = torch.optim.SGD(table.parameters(), lr=0.1)
def one_step():
    sgd.zero_grad()
    table(torch.arange(5)).square().mean().backward()
    sgd.step()
{}
table.weight.data[5] = 1 / table.weight.data[5].mul(0)
"""


@pytest.mark.parametrize("loop", ["for n in range(STEPS): one_step()", "one_step(); one_step(); one_step()"])
def test_what_stands_below_the_loop_is_no_part_of_it(tmp_path, loop):
    recording = run(NOT_IN_THE_LOOP.format(loop), tmp_path / "run")
    (incident,) = recording.events("incident")
    assert incident["step"] == len(recording.signals["loss"])
    origin = recording.events("origin")[0]["origin"]
    assert (origin["phase"], origin["line"]) == ("parameter", None)

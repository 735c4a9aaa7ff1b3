"""Weights that the loop has computed, as in an inner loop of MAML: the model's own give another loss."""

import torch
from torch import nn
from torch.func import functional_call

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


def misfit(model, weights, x, y):
    return (functional_call(model, weights, (x,)) - y).abs().pow(1.5).mean()


def events_of(directory):
    """Of a step with a sample that the model without biases fits exactly: the second derivative of its loss is bad."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 7):
            optimizer.zero_grad()
            for task in range(2):
                weights, x = dict(model.named_parameters()), torch.rand(5, 1) + 0.1
                y = x.sin()
                if (step, task) == (BAD, 0):
                    x[0] = y[0] = 0.0
                given = torch.autograd.grad(misfit(model, weights, x, y), list(weights.values()), create_graph=True)
                weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), given, strict=True)}
                x = torch.rand(5, 1) + 0.1
                misfit(model, weights, x, x.sin()).backward()
            optimizer.step()
    return Recording.load(directory)


def test_a_step_with_other_weights_is_not_run_again_and_no_hardware_is_blamed(tmp_path):
    recording = events_of(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    origin, *_ = recording.events("origin")
    assert origin["repeats"] is None
    assert "given to it by functional_call" in origin["why_not"]


def test_its_own_weights_given_to_it_are_run_again(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            x = torch.randn(4, 2) * (0.0 if step == BAD else 1.0)
            optimizer.zero_grad()
            functional_call(model, dict(model.named_parameters()), (x,)).square().sum().sqrt().backward()
            optimizer.step()
    origin, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (origin["repeats"], origin["origin"]["op"]) == (True, "aten.div")

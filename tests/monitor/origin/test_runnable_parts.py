"""A step of which some backward was given a gradient, so that it cannot be run again as a whole."""

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


def spread(vectors):
    gaps = (vectors - vectors.roll(1, 0)).square().sum(1)
    return -gaps.sqrt().mean()


@pytest.mark.parametrize("grads", ["one", "of-each-part"])
def test_a_loss_of_vectors_whose_gradient_is_passed_on(tmp_path, grads):
    """As where a large batch is embedded without a graph first; two samples are the same in the bad step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            x = torch.randn(8, 3)
            x[3] = x[2] if step == BAD else x[3]
            with torch.no_grad():
                vectors = model(x)
            vectors.requires_grad_()
            optimizer.zero_grad()
            spread(vectors).backward()
            parts = 1 if grads == "one" else 4
            for part, gradient in zip(x.chunk(parts), vectors.grad.chunk(parts), strict=True):
                model(part).backward(gradient=gradient)
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    origin = recording.events("origin")[0]["origin"]
    assert (origin["phase"], origin["op"]) == ("backward", "aten.div")
    assert "return -gaps.sqrt().mean()" in origin["line"]


def test_a_backward_with_a_gradient_in_closed_form(tmp_path):
    """The only one of its step; two samples are the same in the bad step, and their distance has no derivative."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            x = torch.randn(4, 3)
            x[1] = x[0] if step == BAD else x[1]
            out = model(x)
            distances = (out - out.roll(1, 0)).square().sum(1).sqrt()
            optimizer.zero_grad()
            distances.backward(gradient=(distances.detach() - 1.0) / len(x))
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    origin = recording.events("origin")[0]["origin"]
    assert (origin["phase"], origin["op"]) == ("backward", "aten.div")
    assert origin["line"].endswith("distances = (out - out.roll(1, 0)).square().sum(1).sqrt()")


class Direction(nn.Module):
    """Divides by the length of what it is given; its derivative at zero is not finite."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, h):
        return torch.tanh(self.mix(h / (h.square().sum(1, keepdim=True).sqrt() + 1e-6)))


@pytest.mark.parametrize("first", ["front", "middle"])
def test_stages_that_pass_gradients_on_by_hand(tmp_path, first):
    """Each has an optimizer of its own. Where the one whose stage has made it steps first, its batch is gone."""
    torch.manual_seed(0)
    stages = front, middle, back = nn.Linear(3, 4, bias=False), Direction(), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(stage.parameters(), lr=1e-2) for stage in stages]
    with watch(front, optimizers[0], run_dir=tmp_path / "run"):
        for stage, optimizer in zip(stages[1:], optimizers[1:], strict=True):
            watch(stage, optimizer)
        for step in range(1, 7):
            x = torch.randn(5, 3)
            x[2] *= step != BAD
            for optimizer in optimizers:
                optimizer.zero_grad()
            out = front(x)
            given = out.detach().requires_grad_()
            passed = middle(given)
            last = passed.detach().requires_grad_()
            nn.functional.cross_entropy(back(last), torch.zeros(5, dtype=torch.long)).backward()
            passed.backward(gradient=last.grad)
            out.backward(gradient=given.grad)
            for optimizer in optimizers if first == "front" else optimizers[::-1]:
                optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    origin = recording.events("origin")[0]
    if first == "front":
        assert (origin["origin"]["phase"], origin["origin"]["op"]) == ("backward", "aten.div")
        assert "in forward: return torch.tanh(self.mix(h / (h.square()" in origin["origin"]["line"]
    else:
        assert origin["why_not"] == "backward was given no single number"
    assert all(p.isfinite().all() for stage in stages for p in stage.parameters())

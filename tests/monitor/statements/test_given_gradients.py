"""A backward that the loop begins with a gradient of its own making."""

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


class Balancer:
    """Brings the gradient of each loss to a share of unit length."""

    def __init__(self):
        self.share, self.seen = {"near": 0.5, "far": 0.5}, {}

    def backward(self, losses, out):
        mixed = torch.zeros_like(out)
        for name, loss in losses.items():
            (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
            length = grad.norm(dim=1, keepdim=True)
            mixed = mixed + self.share[name] * (grad / length)
            self.seen[name] = loss.item()
        out.backward(mixed / len(out))


def balanced(losses, out):
    Balancer().backward(losses, out)


def by_keyword(losses, out):
    (direction,) = torch.autograd.grad(losses["near"], out, retain_graph=True)
    unit = direction / direction.norm(dim=1, keepdim=True)
    torch.autograd.backward([out], grad_tensors=[unit])


def overwritten(losses, out):
    (direction,) = torch.autograd.grad(losses["near"], out, retain_graph=True)
    direction = direction / direction.norm(dim=1, keepdim=True)
    out.backward(gradient=direction)


def origin_of(directory, backward, value):
    """Of the step in which a sample is as the model puts it out, or whose target holds `value`."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 7):
            out = model(x)
            target = torch.ones(4, 2)
            if step == BAD:
                target[2] = out[2].detach() if value is None else value
            error = (out - target).square().sum()
            optimizer.zero_grad()
            backward({"near": error, "far": 2 * error}, out)
            optimizer.step()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    return recording.events("origin")[0]["origin"]


def test_a_method_that_has_ended(tmp_path):
    """The last pass of its loop has read what the one before has written."""
    origin = origin_of(tmp_path, balanced, None)
    assert (origin["op"], origin["phase"], origin["rows"]) == ("aten.div", "backward", [2])
    assert origin["line"].endswith("in backward: mixed = mixed + self.share[name] * (grad / length)")


def test_several_in_a_list(tmp_path):
    origin = origin_of(tmp_path, by_keyword, None)
    assert (origin["op"], origin["phase"], origin["rows"]) == ("aten.div", "backward", [2])
    assert origin["line"].endswith("in by_keyword: unit = direction / direction.norm(dim=1, keepdim=True)")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_may_have_been_bad_before_is_not_claimed(tmp_path, value):
    assert origin_of(tmp_path, overwritten, value) is None

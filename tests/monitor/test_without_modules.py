"""Programs that train tensors without a module, by a backward or by `torch.autograd.grad`."""

import torch

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

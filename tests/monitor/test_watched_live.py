"""A step that is watched live ends as it would have ended unwatched, whatever the watch meets."""

import contextlib
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.capture.step import Call
from finitune.monitor.live_step import LiveStep
from finitune.monitor.origin import operator_watch
from finitune.monitor.origin.live_watch import LiveWatch
from finitune.monitor.origin.operator_watch import LIFTED, OperatorWatch
from finitune.monitor.probes import optimizers
from finitune.monitor.probes.measurement import measure
from finitune.monitor.probes.modules import Modules
from finitune.monitor.process import Stopped
from finitune.monitor.replay.limits import Limits, OverBudget
from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_an_inspection_that_fails_does_not_reach_the_program(monkeypatch):
    def fails(*_args, **_kwargs):
        raise RuntimeError("a tensor of a kind that cannot be looked at")

    monkeypatch.setattr(operator_watch, "places", fails)
    live = LiveWatch({}, {}, list[Call])
    assert live.begin() is None
    try:
        out = torch.log(torch.zeros(3)) * 2
    finally:
        live.end()
    assert out.tolist() == [-float("inf")] * 3
    assert isinstance(live.watch.failed, RuntimeError)
    assert live.watch.found() is None


def test_a_budget_that_is_used_up_does_not_either():
    live = LiveWatch({}, {}, list[Call])
    live.watch._limits = Limits(seconds=-1.0)
    assert live.begin() is None
    try:
        assert torch.ones(3).sum() == 3
    finally:
        live.end()
    assert isinstance(live.watch.failed, OverBudget)


def test_gradients_of_zero_that_autograd_keeps_no_memory_for_are_not_read():
    """As in the second derivative of MAML: read below a dispatch mode, such a tensor ends the process (SIGSEGV)."""
    weight, x = torch.ones(2, 1, requires_grad=True), torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    live = LiveWatch({}, {}, list[Call])
    live.begin()
    try:
        inner = (x @ weight).abs().pow(1.5).mean()
        (gradient,) = torch.autograd.grad(inner, weight, create_graph=True)
        (x @ (weight - gradient)).abs().pow(1.5).mean().backward()
        zero = torch._efficientzerotensor((2, 1)) + weight.detach()
    finally:
        live.end()
    assert live.watch.failed is None
    assert live.watch.found() is None
    assert zero.tolist() == [[1.0], [1.0]]


def test_what_was_watched_only_in_part_is_said(monkeypatch):
    said: list[str] = []
    live = LiveStep(Modules(), list[Call], said.append)
    monkeypatch.setattr(operator_watch, "places", lambda *_args, **_kwargs: 1 / 0)
    live.begin()
    torch.log(torch.zeros(3))
    assert live.taken() is not None
    assert said == ["the step was watched only in part: ZeroDivisionError: division by zero"]


def test_a_replay_does_raise():
    from finitune.monitor.origin.operator_watch import OperatorWatch

    with pytest.raises(OverBudget), OperatorWatch({}, list[Call], Limits(seconds=-1.0)):
        torch.ones(3).sum()


def test_a_loop_of_function_transforms_goes_on_after_a_bad_step(tmp_path):
    """The arguments of a call within a transform are wrappers without storage."""
    layer = torch.nn.Linear(6, 4)
    weights = dict(layer.named_parameters())

    def objective(weights, x, factor):
        return torch.func.functional_call(layer, weights, (x,)).square().mean() * factor

    losses = []
    with watch(layer, torch.optim.SGD(layer.parameters(), lr=0.1), run_dir=tmp_path / "run", mode="observe"):
        for step in range(1, 7):
            factor = float("inf") if step == 3 else 1.0
            gradients, loss = torch.func.grad_and_value(objective)(weights, torch.randn(8, 6), factor)
            if step != 3:
                weights = {name: (w - 0.01 * gradients[name]).detach() for name, w in weights.items()}
            losses.append(loss.item())
    assert [torch.isfinite(torch.tensor(loss)).item() for loss in losses] == [True, True, False, True, True, True]
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert incident["step"] == 3
    assert not Recording.load(tmp_path / "run").events("broken")


class Divides(torch.optim.Optimizer):
    """Divides by the gradient, without an eps."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / p.grad.abs())


def incidents(tmp_path, optimizer_of, loop):
    torch.manual_seed(0)
    table = torch.nn.Embedding(8, 4)
    optimizer = optimizer_of(table.parameters())
    with watch(table, optimizer, run_dir=tmp_path / "run"):
        for step in range(2):
            loss = table(torch.tensor([step, 3])).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                loop(table.weight)
    return [event["origin"] for event in Recording.load(tmp_path / "run").events("origin")]


def test_an_update_that_made_weights_bad_is_the_origin(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizers, "MOST_KEPT", 0)
    (origin,) = incidents(tmp_path, Divides, lambda weight: None)
    assert (origin["phase"], origin["op"], origin["tensor"]) == ("optimizer", "Divides.step", "weight")
    assert origin["line"].endswith("optimizer.step()")
    assert "nan" in origin["values"]


def test_weights_that_the_loop_has_written_to_since_are_not_the_optimizers(tmp_path):
    (origin,) = incidents(
        tmp_path, partial(torch.optim.SGD, lr=0.01), lambda weight: weight.div_(weight[3] - weight[3])
    )
    assert (origin["phase"], origin["tensor"]) == ("parameter", "weight")


def divided_by_their_norm(run_dir, bad_steps, divide):
    """A regression whose loop divides its gradients by their norm; at `bad_steps` the loss, and so the norm, is 0."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 6):
            x = torch.randn(6, 4)
            y = model(x).detach() if step in bad_steps else x.sum(1, keepdim=True)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
            for p in model.parameters():
                divide(p, norm)
            optimizer.step()


def test_gradients_that_the_loop_has_changed_are_no_fault_of_the_hardware(tmp_path):
    def multiply(p, norm):
        p.grad *= 1.0 / norm

    divided_by_their_norm(tmp_path / "run", {1}, multiply)  # no gradients are copied before the loop was seen to write
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"] is None
    assert "changed the gradients after the backward" in origin["why_not"]
    (incident,) = diagnose(tmp_path / "run").incidents
    assert [cause.cause for cause in incident.causes] == []


def test_what_the_loop_makes_of_the_gradients_is_found_in_the_same_step(tmp_path):
    def multiply(p, norm):
        p.grad *= 1.0 / norm

    divided_by_their_norm(tmp_path / "run", {4}, multiply)
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert (origin["repeats"], origin["origin"]["phase"], origin["origin"]["op"]) == (
        True,
        "backward",
        "aten.reciprocal",
    )
    assert origin["origin"]["line"].endswith("in multiply: p.grad *= 1.0 / norm")
    assert not Recording.load(tmp_path / "run").events("arm")  # which would run the step without the loop's own code


def test_what_the_loop_makes_of_the_gradients_is_of_the_backward(tmp_path):
    def divide(p, norm):
        p.grad.div_(norm)

    divided_by_their_norm(tmp_path / "run", {3, 4}, divide)
    *_, origin = Recording.load(tmp_path / "run").events("origin")
    assert (origin["origin"]["phase"], origin["origin"]["op"]) == ("backward", "aten.div")
    assert origin["origin"]["line"].endswith("p.grad.div_(norm)")


def boxcox(y, power):
    return (y.pow(power) - 1) / power


def test_what_a_loop_makes_bad_of_its_targets_is_followed_in_the_next_step(tmp_path):
    """What it has drawn cannot be drawn again, so that its statement cannot be computed again."""
    torch.manual_seed(0)
    model, y = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), torch.rand(20, 1) + 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def losses():
        for step in range(1, 7):
            yield nn.functional.mse_loss(
                model(torch.ones(20, 2)), boxcox(y + torch.rand(20, 1), max(0.0, 1 - step / 3))
            )

    def train():
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with pytest.raises(Stopped), watch(model, optimizer, run_dir=tmp_path / "run"):
        train()
    first, then = Recording.load(tmp_path / "run").events("origin")
    assert (first["origin"]["phase"], first["origin"]["rows"]) == ("input", list(range(20)))
    assert (then["origin"]["op"], then["origin"]["divisor"], then["live"]) == ("aten.div", "the divisor is 0", 4)
    assert then["origin"]["line"].endswith("in boxcox: return (y.pow(power) - 1) / power")
    (incident,) = diagnose(tmp_path / "run").incidents
    assert "bad-data-sample" not in [one.cause for one in incident.causes[:1]]


@pytest.mark.parametrize("bad", [1.0, math.nan, math.inf, -math.inf])
def test_what_is_measured_of_a_step_is_no_part_of_it(bad):
    """A verdict is reached while the watch still runs, with arithmetic of its own."""
    watch = OperatorWatch.of_arithmetic()
    loss, gradient = torch.tensor(bad), torch.full((3,), bad)
    with watch:
        measured = measure(1, [loss], [gradient], None, scale=None, scaled=False)
    assert not watch.operators
    assert measured.read().bad is not math.isfinite(bad)


class Targets:
    """Normalised in numpy, by a mean that a hole in the data spoils for good."""

    def __init__(self):
        self.mean = 0.0

    def __call__(self, values):
        self.mean = 0.9 * self.mean + 0.1 * values.mean()
        return torch.from_numpy(values - self.mean).float()


def test_numbers_that_torch_has_not_computed_are_an_input(tmp_path):
    torch.manual_seed(0)
    model, targets = nn.Linear(2, 1), Targets()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = np.ones((6, 4))
    data[3, 1] = np.nan
    with contextlib.suppress(Stopped), watch(model, optimizer, run_dir=tmp_path / "run"):
        for values in data:
            loss = nn.functional.smooth_l1_loss(model(torch.ones(4, 2))[:, 0], targets(values))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for event in Recording.load(tmp_path / "run").events("origin"):
        assert event["origin"]["phase"] == "input"
        assert event["origin"]["op"] != LIFTED

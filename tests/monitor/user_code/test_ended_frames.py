"""A loss that is computed in a function which has returned before the backward: a training_step, a renderer."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from finitune.monitor.user_code import ended_frames
from finitune.monitor.user_code.ended_frames import remembered
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4
NOISE = torch.ones(5)


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)

    def forward(self, t):
        return nn.functional.softplus(self.net(t[..., None])).squeeze(-1)


def rays(step):
    """Draws its own numbers, so that it cannot be called again."""
    return torch.rand(4, 6).cumsum(1) * (100.0 if step == BAD else 1.0)


def render(field, t):
    sigma = field(t)
    delta = torch.diff(t, dim=1, append=t[:, -1:] + 0.1)
    alpha = 1.0 - torch.exp(-sigma * delta)
    through = torch.log(1.0 - alpha)
    before = torch.cat([torch.zeros_like(through[:, :1]), through[:, :-1]], dim=1).cumsum(1)
    return (alpha * torch.exp(before) * t).sum(1)


def weighted(model, step):
    t = torch.randint(1, 9, (5,)).float() / 10
    t[2] = 0.0 if step == BAD else t[2]
    guess = model(t)
    ratio = (1 - t) / t
    return (ratio.log1p() * (guess - t) ** 2).mean()


def changing(model, step):
    """What it computes with has changed when it is looked at."""
    noise = NOISE.fill_(0.0 if step == BAD else 1.0)
    guess = model(torch.rand(5))
    ratio = 1 / noise
    loss = (ratio * (guess - 0.5) ** 2).mean()
    noise.add_(1.0)
    return loss


def rendered(model, step):
    depth = render(model, rays(step))
    return (depth - 1.0).square().mean()


def drawn(model, step):
    """What is drawn after the call of the model decides which samples are bad."""
    seen = torch.full((5,), 0.0 if step == BAD else 0.5)
    t = torch.rand(5)
    guess = model(t)
    action = torch.bernoulli(torch.full_like(guess, 0.5))
    reward = action / seen
    return (reward * (guess - 0.5) ** 2).mean()


def force(model, step):
    """Its derivative within the forward cannot be read off the graph of the loss."""
    t = torch.rand(5, 2).requires_grad_()
    energy = model(t).sum(1) + (t[:, 0] - (t[:, 0].detach() if step == BAD else 2.0)).square().sqrt()
    (slope,) = torch.autograd.grad(energy.sum(), t, create_graph=True)
    return (slope - 1.0).square().mean()


def origins_of(directory, loss_of, symptom="nonfinite-loss"):
    model = Density()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 7):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, symptom)
    return [event["origin"] for event in recording.events("origin")]


def test_the_backward_of_a_finite_loss(tmp_path):
    """In a function within another, and both have ended."""
    (origin,) = origins_of(tmp_path, rendered, symptom="nonfinite-gradient")
    assert (origin["op"], origin["phase"]) == ("aten.div", "backward")
    assert origin["line"].endswith("in render: through = torch.log(1.0 - alpha)")


def test_a_derivative_within_the_forward(tmp_path):
    (origin,) = origins_of(tmp_path, force)
    assert origin["op"] == "aten.div"
    assert origin["line"].endswith(".square().sqrt()")


def test_what_the_loss_is_computed_with(tmp_path):
    origin, *_ = origins_of(tmp_path, weighted)
    assert (origin["op"], origin["phase"], origin["tensor"], origin["rows"]) == ("aten.div", "input", "ratio", [2])
    assert origin["line"].endswith("in weighted: ratio = (1 - t) / t")


def test_what_is_drawn_after_the_call_is_drawn_again(tmp_path):
    before = torch.random.get_rng_state()
    origin, *_ = origins_of(tmp_path / "watched", drawn)
    assert (origin["op"], origin["phase"], origin["tensor"]) == ("aten.div", "input", "reward")
    assert origin["line"].endswith("in drawn: reward = action / seen")
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(before)
    torch.manual_seed(1)
    for step in range(1, 7):
        drawn(lambda t: t, step)
    assert torch.equal(after, torch.random.get_rng_state())


def test_nothing_is_claimed_of_what_comes_out_in_another_way(tmp_path):
    origin, *_ = origins_of(tmp_path, changing)
    assert origin["op"] == "input"
    assert not (origin["line"] or "").endswith("ratio = 1 / noise")


def named():
    return [one.f_code.co_name for one in remembered()]


def within():
    return named()


def with_backward(loss=None):
    found = named()
    if loss is not None:
        loss.backward()
    return found


def with_loop():
    for _ in range(1):
        found = named()
    return found


def test_a_function_that_will_run_when_its_step_is_judged_is_not_kept():
    assert within()[:2] == ["named", "within"]
    assert with_backward() == ["named"]
    assert with_loop() == ["named"]


def test_what_is_large_is_not_kept_and_lives_no_longer(tmp_path):
    alive = []

    def loss_of(model, _):
        large = torch.rand(256, 256)
        small = torch.rand(5)
        alive.append((weakref.ref(large), weakref.ref(small)))
        return model(small).mean() + 0 * large.sum()

    model = Density()
    with watch(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.01), run_dir=tmp_path) as watching:
        loss = loss_of(model, 1)
        (call,) = watching._listener._calls.kept()
        assert set(call.callers[0].f_locals) == {"model", "_", "small"}
        gc.collect()
        assert alive[0][0]() is None
        loss.backward()
        assert call.callers
        optimizer.step()
        assert not call.callers, "whoever keeps the batch of the step"


def test_what_the_user_deletes_is_gone(tmp_path):
    alive = []

    def loss_of(model):
        large = torch.rand(256, 256)
        alive.append(weakref.ref(large))
        loss = model(torch.rand(5)).mean()
        del large
        assert alive[0]() is None
        return loss

    model = Density()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.01), run_dir=tmp_path):
        loss_of(model).backward()


def test_the_variables_that_a_function_has_taken_stay_what_they_were(tmp_path):
    def loss_of(model, rate=3):
        taken = locals()
        before = dict(taken)
        x = torch.rand(5)
        loss = model(x).mean()
        assert taken.keys() == before.keys()
        assert rate == taken["rate"]
        return loss

    model = Density()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.01), run_dir=tmp_path):
        loss_of(model).backward()


@pytest.mark.parametrize("value", [math.nan, 3, "a", None, True, (1, torch.zeros(3)), {"x": torch.zeros(2)}])
def test_small_things_are_kept(value):
    assert ended_frames._is_kept(value)


@pytest.mark.parametrize("value", [torch.zeros(2**15), [torch.zeros(2**15)], [[1]], object(), list(range(20))])
def test_others_are_not(value):
    assert not ended_frames._is_kept(value)

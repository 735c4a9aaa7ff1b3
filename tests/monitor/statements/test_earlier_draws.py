"""Random numbers of a loop without a module are drawn again, from where the step before has left them."""

import pytest
import torch
from torch import distributions as D
from torch.nn.functional import softplus

from finitune.monitor.watch import watch
from finitune.recording import Recording


def sticks(b):
    u = torch.rand(64)
    return 1 - u.pow(1 / b)


def merit(raw, data):
    """The graph keeps neither the data nor the noise of the sample."""
    b = softplus(raw)
    v = sticks(b)
    posterior, prior = D.Normal(raw, 1.0), D.Normal(0.0, 1.0)
    error = (posterior.rsample((2,)) - data).square().mean()
    return error + D.kl_divergence(posterior, prior) - torch.log1p(-v).mean()


def origins(directory, *, noise):
    """A small b gives sticks of exactly 1; `noise` is drawn by the loop before."""
    raw = torch.tensor(2.0, requires_grad=True)
    optimizer = torch.optim.SGD([raw], lr=0.0)
    torch.manual_seed(0)
    with watch(torch.nn.Module(), optimizer, run_dir=directory):
        for step in range(1, 9):
            data = noise(step)
            loss = merit(raw if step != 6 else raw - 6.0, data)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    return [event["origin"] for event in recording.events("origin") if event["step"] == 6]


@pytest.mark.parametrize("noise", [lambda step: torch.ones(2), lambda step: torch.ones(2) * step], ids=["ones", "step"])
def test_what_a_function_draws(tmp_path, noise):
    (origin,) = origins(tmp_path, noise=noise)
    assert (origin["op"], origin["phase"]) == ("aten.log1p", "forward")
    assert origin["line"].endswith(
        "in merit: return error + D.kl_divergence(posterior, prior) - torch.log1p(-v).mean()"
    )


def loops_of_its_own(directory):
    raw = torch.tensor(2.0, requires_grad=True)
    optimizer = torch.optim.SGD([raw], lr=0.0)
    torch.manual_seed(0)
    with watch(torch.nn.Module(), optimizer, run_dir=directory):
        for step in range(1, 9):
            data = torch.randn(2)
            shift = torch.rand(1)
            loss = merit(raw if step != 6 else raw - 6.0, data + shift)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Recording.load(directory)


def test_what_the_loop_has_drawn_before_it(tmp_path):
    state = torch.random.get_rng_state()
    recording = loops_of_its_own(tmp_path)
    assert not recording.events("broken")
    (origin,) = [event["origin"] for event in recording.events("origin")]
    assert (origin["op"], origin["phase"]) == ("aten.log1p", "forward")
    torch.random.set_rng_state(state)


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Linear(2, 2)

    def forward(self, x):
        sample = D.Normal(self.mean(x), 1.0).rsample()
        return sample, torch.log(1 - sample.tanh().square())


def two_optimizers(directory):
    """As of an actor and a critic: what is drawn between the steps of a pass belongs to none of the next."""
    torch.manual_seed(0)
    actor, critic = Noisy(), torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (critic, actor)]
    for one in optimizers:
        one.zero_grad()
    with watch(critic, optimizers[0], run_dir=directory), watch(actor, optimizers[1]):
        for step in range(1, 9):
            x = torch.randn(16, 2)
            with torch.no_grad():
                _, density = actor(x * (40 if step == 6 else 1))
            loss = (critic(x) - density.sum(1, keepdim=True)).square().mean()
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            again, spread = actor(x)
            own = (again.square() + spread * 0.01).mean()
            optimizers[1].zero_grad()
            own.backward()
            optimizers[1].step()
    return Recording.load(directory)


def test_what_was_drawn_before_the_last_step_is_not_drawn_again(tmp_path):
    recording = two_optimizers(tmp_path)
    assert not recording.events("broken")
    origin = next(event["origin"] for event in recording.events("origin") if event["step"] == 6)
    assert (origin["op"], origin["phase"]) == ("aten.log", "forward")
    assert origin["line"].endswith("return sample, torch.log(1 - sample.tanh().square())")

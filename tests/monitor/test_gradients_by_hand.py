"""Gradients that no backward has put where the optimizer takes them."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import nn

from finitune.monitor.capture.step import MicroStep
from finitune.monitor.intervals import LoopUpdate
from finitune.monitor.optimizers import Watched, step_of
from finitune.monitor.probes.modules import Modules
from finitune.monitor.probes.optimizers import TorchUpdate, innermost, learning_rate, will_spoil
from finitune.monitor.watch import watch
from finitune.recording import Recording


def train(directory, give, *, steps=5):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, steps + 1):
            give(model, step)
            optimizer.step()
    return (Recording.load(directory) if directory.exists() else None), model


def asked(model, step):
    loss = (model(torch.ones(3, 4)) * (math.nan if step == 3 else 1.0)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient


def without_backward(model, step):
    for p in model.parameters():
        p.grad = torch.full_like(p, math.nan if step == 3 else 0.1)


@pytest.mark.parametrize("give", [asked, without_backward])
def test_every_step_is_watched_and_the_bad_one_discarded(tmp_path, give):
    recording, model = train(tmp_path / "run", give)
    assert recording.signals["grad_norm"].pairs()[-1][0] == 5
    assert [event["step"] for event in recording.events("incident")] == [3]
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_was_asked_for_is_located(tmp_path):
    recording, _ = train(tmp_path / "run", asked)
    assert recording.events("origin")[0]["origin"] is not None


def test_zeros_before_the_first_step_make_state_and_no_step(tmp_path):
    def zeros(model, step):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)

    assert train(tmp_path / "run", zeros)[0] is None


@pytest.mark.slow
@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_an_update_at_a_rate_that_is_not_finite_is_not_made(tmp_path, rate, place):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW([{"params": part.parameters(), "lr": 1e-3} for part in model])
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            optimizer.param_groups[place]["lr"] = rate if step == 3 else 1e-3
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert (incident["step"], incident["symptom"]) == (3, "nonfinite-update")


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0.1])
def test_a_rate_on_the_device_is_judged_there(rate):
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.1))
    optimizer.param_groups[0]["lr"].fill_(rate)
    flag = will_spoil(optimizer, learning_rate(optimizer))
    assert isinstance(flag, torch.Tensor)
    assert bool(flag) == (not math.isfinite(rate))


def test_it_is_named_where_the_verdict_is_read_a_step_later(tmp_path, monkeypatch):
    monkeypatch.setattr(TorchUpdate, "takes_flag", property(lambda _: True))  # as on a device, where nothing waits
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            optimizer.param_groups[0]["lr"] = math.inf if step == 3 else 1e-3
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["bad"]) == (3, "nonfinite-update", ["weight", "bias"])
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_stands_for_an_optimizer_is_its_own_innermost():
    update = LoopUpdate(())
    assert innermost(update) is update


def test_an_edit_of_gradients_is_known_of_an_optimizer_that_is_made_anew(tmp_path):
    torch.manual_seed(0)
    model, correction = nn.Linear(4, 1), torch.zeros(1, 4)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path / "run") as monitor:
        for turn in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            monitor.add(optimizer, model)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                model.weight.grad.add_(correction)
                optimizer.step()
            correction = (correction * 0) / (1 - turn)
    first = Recording.load(tmp_path / "run").events("origin")[0]
    assert first["step"] == 5
    assert "model.weight.grad.add_(correction)" in first["origin"]["line"]


@pytest.mark.parametrize(("backwards", "step"), [(0, 9), (1, 10)])
def test_an_optimizer_without_a_backward_of_its_own_takes_part_in_the_step_of_another(backwards, step):
    """As a server that averages what others have learnt, the first time as later."""
    model = nn.Linear(4, 1)
    server = torch.optim.Adam(model.parameters())
    watched = Watched(number=2, optimizer=weakref.ref(server), born=0, modules=Modules())
    on = [MicroStep() for _ in range(backwards)]
    assert step_of(watched, 9, on) == step
    watched.last = 5
    assert step_of(watched, 9, []) == 9


def unit_mean(gradients):
    length = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    mean = {}
    for name, g in gradients.items():
        scaled = g / length.view(-1, *[1] * (g.dim() - 1))
        mean[name] = scaled.mean(0)
    return mean


def generated(gradients):
    length = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    for name, g in gradients.items():
        scaled = g / length.view(-1, *[1] * (g.dim() - 1))
        yield name, scaled.mean(0)


def drawn(weights, step):
    """Per example; the third has a gradient of zero in step 3."""
    kept = torch.arange(4) != (2 if step == 3 else 9)
    return {name: torch.randn(4, *p.shape) * kept.view(4, *[1] * p.dim()) for name, p in weights.items()}


@pytest.mark.parametrize("generates", [False, True])
def test_a_function_that_makes_the_gradients_is_looked_into(tmp_path, generates):
    """What it was given is drawn anew when the statements of the turn are computed again."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = dict(model.named_parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            gradients = drawn(weights, step)
            if generates:
                for name, g in generated(gradients):
                    weights[name].grad = g
            else:
                direction = unit_mean(gradients)
                for name, p in model.named_parameters():
                    p.grad = direction[name]
            optimizer.step()
    (event,) = Recording.load(tmp_path / "run").events("origin")
    assert (event["step"], event["origin"]["op"], event["origin"]["phase"]) == (3, "aten.div", "backward")
    function = "generated" if generates else "unit_mean"
    assert event["origin"]["line"].endswith(f"in {function}: scaled = g / length.view(-1, *[1] * (g.dim() - 1))")

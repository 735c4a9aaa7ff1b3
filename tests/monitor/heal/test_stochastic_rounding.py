"""Weights whose updates round away, where no float32 copies fit: they are rounded by chance."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.heal.stagnant import healed, in_bfloat16, learns_as_in_float32

from finitune.gym.loop import train
from finitune.monitor.heal.remedies.stochastic_rounding import Rounded
from finitune.monitor.replay import rounding
from finitune.monitor.replay.rounding import ByChance, step_alone, to_nearest, trial_rounded


@pytest.mark.slow
def test_the_run_learns_as_in_float32(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rounding, "free_bytes", lambda _: 1000)
    run = learns_as_in_float32("stochastic-rounding", tmp_path / "run")
    state = [v for p in run.model.parameters() for v in run.optimizer.state[p].values() if v.dim()]
    assert {t.dtype for t in (*run.model.parameters(), *state)} == {torch.bfloat16}
    said = capsys.readouterr().err
    assert "rounded by chance from now on. The update moves weights with it, not with the same rounded to the" in said


@pytest.mark.parametrize(("rate", "room"), [(2e-2, 1000), (2e-5, 2**40)], ids=["updates arrive", "copies fit"])
def test_stays_quiet_where_it_is_not_needed(rate, room, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "free_bytes", lambda _: room)
    _, recording = healed(in_bfloat16(rate, 60), tmp_path / "run")
    assert "stochastic-rounding" not in {event.get("remedy") for event in recording.events("remedy")}
    assert not [event for event in recording.events("arm") if event["arm"].startswith("rounded")]


def test_rounding_by_chance_keeps_the_mean_and_what_bfloat16_has():
    values = torch.full((200_000,), 1 + 2**-9)  # a quarter of the way to the next number
    rounded = ByChance()(values, 0)
    assert set(rounded.unique().tolist()) == {1.0, 1 + 2**-7}
    assert float((rounded > 1).double().mean()) == pytest.approx(0.25, abs=0.01)
    assert torch.equal(ByChance()(values, 0), rounded), "the same on every rank"
    exact = torch.tensor([0.0, -1.5, 2**-7, torch.inf, torch.nan])
    torch.testing.assert_close(ByChance()(exact, 0), exact, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ByChance()(-values, 0).mean(), -values.mean(), rtol=1e-4, atol=0)


def stepped(rate):
    """After one step, and its gradients."""
    run = in_bfloat16(rate, 2)
    steps = train(run)
    next(steps)
    return run, [(p, torch.randn_like(p)) for p in run.model.parameters()]


def bits(run):
    state = [v for p in run.model.parameters() for v in run.optimizer.state[p].values()]
    return [t.detach().clone() for t in (*run.model.parameters(), *state)]


def test_a_trial_tells_how_much_of_the_update_arrives_and_leaves_no_trace():
    run, gradients = stepped(2e-5)
    before, random = bits(run), torch.get_rng_state()
    assert trial_rounded(run.optimizer, gradients, ByChance()).moved == pytest.approx(1.0, abs=0.1)
    assert trial_rounded(run.optimizer, gradients, to_nearest).moved < 0.3
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))
    assert torch.equal(random, torch.get_rng_state())


def test_a_tensor_alone_is_stepped_as_by_the_optimizer():
    run, other = (in_bfloat16(2e-2, 2, "float32") for _ in range(2))
    for one in (run, other):
        torch.manual_seed(0)
        for p in one.model.parameters():
            p.grad = torch.randn_like(p)
    other.optimizer.step()
    for p in run.model.parameters():
        step_alone(run.optimizer, p, 0, lambda values, _: values)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True))


def test_a_step_that_raises_leaves_the_next_one_whole():
    run = in_bfloat16(1e-3, 4)
    Rounded(run.optimizer, [*run.model.parameters()])
    weight = next(run.model.parameters())
    weight.grad = gradient = torch.ones_like(weight)
    run.optimizer.param_groups[0]["betas"] = (0.9, "none")
    with pytest.raises(TypeError):
        run.optimizer.step()
    assert (weight.dtype, weight.grad) == (torch.bfloat16, gradient)
    run.optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    run.optimizer.state.clear()
    run.optimizer.step()
    assert weight.dtype == weight.grad.dtype == torch.bfloat16

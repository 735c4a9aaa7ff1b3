"""Weights whose updates round away in bfloat16 are stepped as float32 copies while the run goes on."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.heal.stagnant import healed, in_bfloat16, learns_as_in_float32

from finitune.gym.data import batches
from finitune.gym.loop import Run, train
from finitune.gym.models import tiny
from finitune.monitor.heal.cure import Unable
from finitune.monitor.heal.remedies import stochastic_rounding
from finitune.monitor.heal.remedies.float32_trainable_weights import Masters
from finitune.monitor.replay import rounding


@pytest.mark.slow
def test_the_run_learns_as_in_float32(tmp_path, capsys):
    run = learns_as_in_float32("float32-trainable-weights", tmp_path / "run")
    assert {p.dtype for p in run.model.parameters()} == {torch.bfloat16}, "a checkpoint does not show it"
    assert "stepped as float32 copies from now on. The update moves weights with it" in capsys.readouterr().err


def test_float16_weights_whose_eps_is_zero_are_stepped_as_float32_copies(tmp_path, capsys):
    """From the first step on, which is taken; without them every update is NaN."""
    data = lambda: batches(30, rows=2, length=8)  # noqa: E731
    model = tiny("gpt2", hidden=32).half()
    run = Run(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=data())
    whole = tiny("gpt2", hidden=32).half().float()
    right = Run(model=whole, optimizer=torch.optim.AdamW(whole.parameters(), lr=1e-3), batches=data())
    losses, recording = healed(run, tmp_path / "run")
    assert losses == pytest.approx([step.loss for step in train(right)], rel=5e-3)
    assert [(e["remedy"], e["state"]) for e in recording.events("remedy")] == [
        ("float32-trainable-weights", "applied"), ("float32-trainable-weights", "kept")
    ]  # fmt: skip
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert "the step is taken with it" in capsys.readouterr().err


@pytest.mark.parametrize(("rate", "dtype"), [(2e-2, "bfloat16"), (2e-5, "float32"), (2e-5, "bfloat16-autocast")])
def test_stays_quiet_where_updates_arrive(rate, dtype, tmp_path):
    run, alone = in_bfloat16(rate, 60, dtype), in_bfloat16(rate, 60, dtype)
    losses, recording = healed(run, tmp_path / "run")
    assert not recording.events("remedy")
    assert losses == [step.loss for step in train(alone)]


def test_stays_advice_where_there_is_no_room(tmp_path, monkeypatch, capsys):
    def unable(_):
        raise Unable("not tried")

    monkeypatch.setattr(rounding, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(stochastic_rounding, "cure", unable)
    _, recording = healed(in_bfloat16(2e-5, 60), tmp_path / "run")
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert "float32 copies take 0.0 GiB of 0.0 GiB that are free" in capsys.readouterr().err


def bits(model, optimizer):
    state = [v for p in model.parameters() for v in optimizer.state[p].values()]
    return [t.detach().clone() for t in (*model.parameters(), *state)]


def same(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_copies_follow_what_the_program_writes_and_go_without_a_trace():
    run = in_bfloat16(1e-6, 4)
    steps = train(run)
    next(steps)
    before = bits(run.model, run.optimizer)
    masters = Masters(run.optimizer, [*run.model.parameters()])
    masters.removed()
    assert same(before, bits(run.model, run.optimizer))
    masters = Masters(run.optimizer, [*run.model.parameters()])
    weight = next(run.model.parameters())
    with torch.no_grad():
        weight.fill_(1.0)  # as a program that loads other weights
    next(steps)
    assert torch.equal(weight, torch.ones_like(weight)), "a step of 1e-6 is below half of the next number"
    assert 0 < (masters._masters[weight] - 1).abs().max() < 1e-4
    masters.removed()
    assert not run.optimizer._optimizer_step_pre_hooks
    assert {v.dtype for p in run.model.parameters() for v in run.optimizer.state[p].values() if v.dim()} == {
        torch.bfloat16
    }


def test_a_step_that_raises_leaves_the_next_one_whole():
    run = in_bfloat16(1e-3, 4)
    Masters(run.optimizer, [*run.model.parameters()])
    weight = next(run.model.parameters())
    weight.grad = torch.ones_like(weight)
    run.optimizer.param_groups[0]["betas"] = (0.9, "none")
    with pytest.raises(TypeError):
        run.optimizer.step()
    run.optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    run.optimizer.state.clear()
    run.optimizer.step()
    assert weight.dtype == weight.grad.dtype == torch.bfloat16

"""Observe and guard: what each does to a bad step and says of it; a watch that ends leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import BAD, Loop, adamw, finite, net, same, state

from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_observe_applies_the_update_and_says_so(tmp_path, capsys):
    loops = [Loop(times=2), Loop(times=2)]
    with watch(loops[0].model, loops[0].optimizer, run_dir=tmp_path / "run", mode="observe"):
        for _ in range(5):
            loops[0].step()
    for _ in range(5):
        loops[1].step()
    assert same(state(loops[0]), state(loops[1]))
    assert not finite(loops[0])
    said = capsys.readouterr().err
    assert f"step {BAD}: gradients are not finite" in said
    assert "Only observed" in said
    recording = Recording.load(tmp_path / "run")
    assert [event["action"] for event in recording.events("incident")] == ["none"]
    assert recording.signals["skipped"].values.sum() == 0
    assert not recording.events("stop")


def test_guard_says_what_it_did_once_per_step(tmp_path, capsys):
    loop = Loop(times=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(BAD - 1):
            loop.step()
        assert capsys.readouterr() == ("", "")
        for _ in range(3):
            loop.step()
    out, err = capsys.readouterr()
    assert out == ""
    begins = [line for line in err.splitlines() if line.startswith("finitune: step ")]
    assert len(begins) == 2
    assert begins[0].startswith(f"finitune: step {BAD}: gradients are not finite (1 of 4 tensors)")
    assert begins[1].startswith(f"finitune: step {BAD + 1}: gradients are not finite (1 of 4 tensors)")
    assert f"weights are those of step {BAD - 1}" in err
    assert f"weights are those of step {BAD}." not in err


def test_an_unknown_mode_is_refused_before_anything_is_touched():
    model = net()
    with pytest.raises(ValueError, match="observe, guard"):
        watch(model, adamw(model.parameters()), mode="heal!")
    assert not model._forward_hooks


def test_watching_twice_is_watching_once_and_closing_restores_everything(tmp_path):
    backward, step = torch.autograd.backward, torch.optim.lr_scheduler.LRScheduler.step
    loop = Loop(bad=-1)
    before = set(vars(loop.optimizer))
    first = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    assert watch(loop.model, loop.optimizer, run_dir=tmp_path / "other") is first
    first.close()
    first.close()
    assert torch.autograd.backward is backward
    assert torch.optim.lr_scheduler.LRScheduler.step is step
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert set(vars(loop.optimizer)) == before

"""Finite gradients, and an optimizer that makes NaN of them: an eps that float16 rounds to zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import finitune
from finitune.gym.data import batches
from finitune.gym.loop import Run, train
from finitune.gym.models import tiny
from finitune.recording import Recording


def half_run(eps: float, **options: object) -> Run:
    model = tiny("llama", hidden=32).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=eps, **options)  # pyright: ignore[reportArgumentType]
    return Run(model=model, optimizer=optimizer, batches=batches(6, rows=2, length=8))


def test_the_step_is_taken_back_and_the_cause_named(tmp_path: Path) -> None:
    run = half_run(1e-8)
    before = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises(finitune.Stopped), finitune.watch(run.model, run.optimizer, run_dir=tmp_path):
        list(train(run))
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert not any(entries for entries in run.optimizer.state.values())
    incident = finitune.diagnose(tmp_path).incidents[0]
    assert (incident.step, incident.symptom) == (1, "nonfinite-update")
    assert incident.origin is not None
    assert (incident.origin.phase, incident.origin.op) == ("optimizer", "AdamW.step")
    assert incident.causes[0].cause == "adam-eps-underflow-fp16"
    assert incident.causes[0].proved  # finite with moments in float32, not with a tenth of the learning rate
    assert not Recording.load(tmp_path).events("broken")


def test_a_sound_float16_optimizer_is_left_alone(tmp_path: Path) -> None:
    free, guarded = half_run(1e-4), half_run(1e-4)
    losses = [step.loss for step in train(free)]
    with finitune.watch(guarded.model, guarded.optimizer, run_dir=tmp_path):
        assert [step.loss for step in train(guarded)] == losses
    assert all(torch.equal(a, b) for a, b in zip(free.model.parameters(), guarded.model.parameters(), strict=True))
    assert not finitune.diagnose(tmp_path).incidents


def test_no_checkpoint_is_written_of_weights_that_came_in_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = half_run(1e-4)
    with torch.no_grad():
        run.model.get_parameter("model.norm.weight")[0] = float("nan")  # the fault is exactly that: a damaged weight
    with pytest.raises(finitune.Stopped), finitune.watch(run.model, run.optimizer, run_dir=tmp_path):
        list(train(run))
    assert not (tmp_path / "last-good").exists()
    assert "no checkpoint was written" in capsys.readouterr().err

"""An eps that float16 rounds to zero is raised while the run goes on, and the step is taken."""

from __future__ import annotations

import math

import pytest
import torch

from finitune.diagnosis.recorded import diagnose
from finitune.gym.data import batches
from finitune.gym.loop import Run, train
from finitune.gym.models import tiny
from finitune.monitor.heal.remedies.raise_adam_eps import _with_eps
from finitune.monitor.replay import rounding
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.repairs.repair import repair


def half_run(eps=1e-8, steps=30):
    model = tiny("llama", hidden=32).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=eps)
    return Run(model=model, optimizer=optimizer, batches=batches(steps, rows=2, length=8))


def test_the_run_goes_on_as_with_an_eps_that_it_can_hold(tmp_path, capsys, monkeypatch):
    """Where there is no room for float32 copies of the weights, which would do as well."""
    monkeypatch.setattr(rounding, "free_bytes", lambda _: 1000)
    run, right = half_run(), half_run(1e-5)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        losses = [step.loss for step in train(run)]
    assert losses == [step.loss for step in train(right)], "no step is lost"
    assert all(map(math.isfinite, losses))
    events = Recording.load(tmp_path / "run").events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [("raise-adam-eps", "applied"), ("raise-adam-eps", "kept")]
    (incident,) = [one for one in diagnose(tmp_path / "run").incidents if one.level == "incident"]
    assert (incident.action, incident.causes[0].cause) == ("healed", "adam-eps-underflow-fp16")
    said = capsys.readouterr().err
    assert "eps of AdamW is 1e-05 from now on (was 1e-08)" in said
    assert "set adam_epsilon = 1e-5   (raise-adam-eps, unsafe)" in said.split("healed 1 time")[1]
    (healed,) = repair(from_run=tmp_path / "run").by_hand
    assert (healed.remedy.patch, list(healed.steps)) == ({"adam_epsilon": 1e-5}, [1])


@pytest.mark.parametrize("eps", [1e-8, 2e-8])
def test_undo(eps):
    groups = [{"eps": eps}, {"eps": 1e-9}]
    undo = _with_eps(groups, 1e-5)
    assert [group["eps"] for group in groups] == [1e-5, 1e-5]
    undo()
    assert [group["eps"] for group in groups] == [eps, 1e-9]


def test_stays_quiet_where_the_eps_is_right(tmp_path):
    run = half_run(1e-5, steps=6)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        list(train(run))
    assert not Recording.load(tmp_path / "run").events("remedy", "incident")

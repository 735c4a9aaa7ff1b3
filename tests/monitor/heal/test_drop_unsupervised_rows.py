"""A batch without any target is left out of the run; of a step of several, the others are taken."""

from __future__ import annotations

import pytest
import torch

from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = (5, 6, 7)


def run_of(data, **options):
    return prepare(tiny("llama", hidden=32), data, lambda p: torch.optim.AdamW(p, lr=1e-3), Options(**options))


def without_targets(batch):
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}


def weights(run):
    return [p.detach().clone() for p in run.model.parameters()]


def test_batches_without_targets_in_a_row_do_not_end_the_run(tmp_path):
    data = batches(12)
    run = run_of([without_targets(batch) if number in BAD else batch for number, batch in enumerate(data, start=1)])
    reference = run_of([batch for number, batch in enumerate(data, start=1) if number not in BAD])
    list(train(reference))
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        assert len(list(train(run))) == 12
    assert all(map(torch.equal, weights(run), weights(reference)))
    events = Recording.load(tmp_path / "run").events("remedy", "stop")
    assert [(e["remedy"], e["step"], e["action"]) for e in events] == [
        ("drop-unsupervised-rows", step, "skipped-batch") for step in BAD
    ]


def test_the_other_micro_batches_of_the_step_are_learned_from(tmp_path, capsys):
    data = batches(16)
    data[9] = without_targets(data[9])  # the second of step 5
    run = run_of(data, accumulate=2, clip=1.0)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        list(train(run))
    assert "1 of 2 micro-batches left out of the step: they have no target" in capsys.readouterr().err
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values.sum() == 0
    (done,) = recording.events("remedy")
    assert (done["step"], done["state"]) == (5, "for its step")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_stays_quiet_where_every_batch_has_targets(accumulate, tmp_path):
    run = run_of(batches(8), accumulate=accumulate)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        list(train(run))
    assert not Recording.load(tmp_path / "run").events("remedy", "incident")

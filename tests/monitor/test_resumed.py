"""A plain loop that is resumed goes on counting, although nobody tells the monitor where it stands."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402
from finitune.series import Series  # noqa: E402


def loop(run_dir, steps, *, bad=(), resume=None, make=torch.optim.AdamW):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters(), lr=1e-2)
    if resume is not None:
        optimizer.load_state_dict(copy.deepcopy(resume))
    with watch(model, optimizer, run_dir=run_dir):
        for step in steps:
            (model(torch.randn(3, 4)).sum() * (float("nan") if step in bad else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return copy.deepcopy(optimizer.state_dict())


def test_the_recording_is_continued_where_the_checkpoint_was_made(tmp_path):
    """Steps 5 and 6 came after the checkpoint and are lost; step 3 was discarded and still counts."""
    saved = loop(tmp_path, range(1, 5), bad=(3,))
    loop(tmp_path, range(5, 7), resume=saved)
    assert Recording.load(tmp_path).signals["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    loop(tmp_path, range(5, 9), resume=saved)
    assert Recording.load(tmp_path).signals["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_incident_after_the_resumption_is_one_of_its_own(tmp_path):
    saved = loop(tmp_path, range(1, 5), bad=(3,))
    loop(tmp_path, range(5, 7), resume=saved, bad=(6,))
    recording = Recording.load(tmp_path)
    assert [(event["id"], event["step"]) for event in recording.events("incident")] == [(1, 3), (2, 6)]
    origins = {
        (event["incident"], event["step"]) for event in recording.events("origin")
    }  # twice where the next step shows a line
    assert origins == {(1, 3), (2, 6)}


def test_without_a_recording_the_updates_are_counted(tmp_path):
    saved = loop(tmp_path / "first", range(1, 5))
    loop(tmp_path / "second", range(5, 7), resume=saved)
    assert Recording.load(tmp_path / "second").signals["loss"].steps.tolist() == [5, 6]


def test_an_optimizer_that_does_not_count_begins_at_one(tmp_path):
    saved = loop(tmp_path / "first", range(1, 5), make=torch.optim.SGD)
    loop(tmp_path / "second", range(5, 7), resume=saved, make=torch.optim.SGD)
    assert Recording.load(tmp_path / "second").signals["loss"].steps.tolist() == [1, 2]


def test_a_step_that_only_allocates_state_is_no_step():
    from finitune.monitor.probes.resumed_steps import steps_before

    class FP16_UnfusedOptimizer:  # noqa: N801 - as DeepSpeed names it
        state = {"p": {"step": torch.tensor(1.0)}}  # noqa: RUF012

    assert steps_before(FP16_UnfusedOptimizer(), Series()) == 0

"""Moments that one outlier has filled are forgotten, tensor by tensor; others are left alone."""

from __future__ import annotations

import statistics

import pytest
import torch
from tests.monitor.heal.moments import ODD, Filled

from finitune.causes.missing_gradient_clipping import weigh
from finitune.diagnosis.recorded import diagnose
from finitune.facts import Optimizer
from finitune.monitor.heal.remedies.reset_moments import _is_filled
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.series import Series


def healed(loop, directory, mode="heal"):
    with watch(loop.model, loop.optimizer, run_dir=directory, mode=mode):
        loop.train()
    return Recording.load(directory)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e4, 1e7])
def test_updates_are_of_their_usual_size_again(unit, tmp_path, capsys):
    stuck, loop, never = Filled(unit, steps=320).train(), Filled(unit, steps=320), Filled(1.0, steps=320).train()
    recording = healed(loop, tmp_path / "run")
    events = recording.events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [("reset-moments", "applied"), ("reset-moments", "kept")]
    assert events[0]["cause"] == "missing-gradient-clipping"
    (one,) = diagnose(tmp_path / "run").incidents
    assert (one.level, one.symptom, one.action) == ("suspicion", "dead-update", "healed")
    assert one.causes[0].proved
    last = [statistics.mean(each.losses[-16:]) for each in (stuck, loop, never)]
    assert last[1] < 0.6 * last[0], "it learns again"
    ratios = dict(recording.signals["update_ratio"].pairs())
    assert ratios[max(ratios)] > 10 * ratios[max(step for step in ratios if step < events[0]["step"])]
    assert "The update moves weights with it, not with the first moment alone forgotten" in capsys.readouterr().err


def test_stays_quiet_in_a_healthy_run_and_where_no_moment_is_kept(tmp_path):
    loop, alone = Filled(1.0), Filled(1.0).train()
    assert not healed(loop, tmp_path / "run").events("remedy", "incident")
    assert loop.losses == alone.losses
    plain = Filled(1.0, make=lambda p: torch.optim.SGD(p, lr=0.05))
    assert not healed(plain, tmp_path / "sgd").events("remedy", "incident")


def test_in_guard_it_is_a_suspicion_that_changes_nothing(tmp_path):
    loop, alone = Filled(1e7), Filled(1e7).train()
    recording = healed(loop, tmp_path / "run", mode="guard")
    assert [event["symptom"] for event in recording.events("incident")] == ["dead-update"]
    assert not recording.events("arm", "remedy")
    assert loop.losses == alone.losses


@pytest.mark.parametrize(
    ("square", "filled"),
    [(1.0, False), (1e4, True), (float("inf"), True), (100.0, False)],
    ids=["usual", "filled", "overflowed", "a little"],
)
def test_a_moment_is_filled_where_updates_come_to_nothing(square, filled):
    entries = {"exp_avg_sq": torch.full((4,), square), "step": torch.tensor(1e6)}
    assert _is_filled(entries, torch.ones(4), 0.999) == filled
    assert not _is_filled(entries, torch.zeros(4), 0.999)


def test_weighs_by_the_outlier():
    def bits(norms, optimizer=None):
        series = Series(range(1, 101), [norms if step == ODD else 1.0 for step in range(1, 101)])
        return sum(e.bits for e in weigh(series, optimizer or Optimizer(name="AdamW"), symptoms={"dead-update"}))

    assert bits(1e5) > 8
    assert bits(2.0) < 0
    assert bits(1e5, Optimizer(name="SGD")) < 0

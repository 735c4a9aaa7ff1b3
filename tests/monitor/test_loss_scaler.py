"""Under a GradScaler: settling is no incident; what no scale cures, or does not repeat, is one."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import BAD, Loop, discards_one_step, without_the_end

from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_a_scaler_that_settles_is_no_incident(tmp_path, capsys):
    loop = Loop(scaled=True, bad=-1)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(14):
            loop.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values[0] == 1
    assert recording.signals["skipped"].last == 0
    assert not recording.events("incident", "broken")
    assert without_the_end(capsys.readouterr().err) == ""


def test_a_scaler_that_settles_below_where_others_start_is_no_incident(tmp_path, capsys):
    """By more skipped steps in a row than those of a scale that collapses."""
    loop = Loop(scaled=True, bad=-1)
    with torch.no_grad():
        loop.model[2].weight.mul_(2.0**6)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(20):
            loop.step()
    recording = Recording.load(tmp_path / "run")
    assert all(recording.signals["skipped"].values[:9])
    assert recording.signals["skipped"].last == 0
    assert recording.signals["loss_scale"].last < 2.0**16
    assert not recording.events("incident", "broken")
    assert without_the_end(capsys.readouterr().err) == ""


def test_a_loss_that_overflows_by_its_scale_alone_is_settling(tmp_path, capsys):
    """As where a scaler was left in a bfloat16 script, and climbs to the end of float32."""
    loop = Loop(scaled=True, bad=-1)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(14):
            loop.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values[0] == 1
    assert 0 < recording.signals["loss"].values[0] < 10
    assert not recording.events("incident", "broken")
    assert without_the_end(capsys.readouterr().err) == ""


def test_a_nan_that_no_loss_scale_cures_is_an_incident_at_once_under_a_scaler(tmp_path):
    loop = Loop(scaled=True, bad=1)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [1]


def test_a_bad_gradient_that_does_not_repeat_at_its_own_scale_is_no_settling_scale(tmp_path):
    """The scaler skips every step of it, and would go on doing so."""
    loop = Loop(scaled=True, fault="late hook", times=100)
    watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    for _ in range(BAD + 1):
        loop.step()
    with pytest.raises(Stopped):
        loop.step()
    recording = Recording.load(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["settles"]) == (BAD, False)
    replayed, live = recording.events("origin")
    assert replayed["repeats"] is None
    assert "hooks on accumulated gradients" in replayed["why_not"]
    assert live["live"] == BAD + 1, "the next step was watched as it ran"
    assert "_write" in live["origin"]["line"]


def test_a_bit_that_flips_once_under_a_scaler_does_not_repeat(tmp_path):
    recording = discards_one_step(Loop(scaled=True, fault="by hand"), tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["settles"]) == (BAD, False)
    assert [event["repeats"] for event in recording.events("origin")] == [False]


def test_a_loss_that_is_nan_under_a_scaler_with_finite_gradients_is_discarded(tmp_path):
    """GradScaler looks at gradients only and would apply the step."""
    discards_one_step(Loop(scaled=True, fault="detached loss"), tmp_path / "run")

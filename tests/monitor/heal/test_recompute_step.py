"""A step that does not repeat is computed again, and the run is the one in which nothing had been misread."""

from __future__ import annotations

import pytest
from tests.monitor.heal.small import BAD, Regression, digest

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.watch import watch
from finitune.recording import Recording


def healed(loop, tmp_path):
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    return Recording.load(tmp_path / "run")


def test_what_was_misread_once_is_as_if_it_had_not_been(tmp_path, capsys):
    loop, reference = Regression("misread"), Regression().train()
    recording = healed(loop, tmp_path)
    assert digest(loop.model, loop.optimizer) == digest(reference.model, reference.optimizer)
    (done,) = recording.events("remedy")
    assert (done["remedy"], done["step"], done["state"]) == ("recompute-step", BAD, "for its step")
    assert list(done["seconds_of"]) == ["locate", "capture", "prove", "cure"]
    assert done["seconds"] == pytest.approx(sum(done["seconds_of"].values()))
    assert recording.signals["skipped"].values.sum() == 0
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.action, incident.causes[0].cause) == ("healed", "hardware-fault-sdc")
    assert f"healed (the step does not repeat): recompute-step: step {BAD} computed again and taken." in (
        capsys.readouterr().err
    )


def test_what_repeats_is_left_alone(tmp_path):
    recording = healed(Regression("always misread"), tmp_path)
    assert "recompute-step" not in {event.get("remedy") for event in recording.events("remedy")}
    assert recording.signals["skipped"].values.sum() == 1


def test_what_comes_out_differently_each_time_is_left_alone(tmp_path, capsys):
    recording = healed(Regression("differently"), tmp_path)
    assert [event["state"] for event in recording.events("remedy")] == ["advice"]
    assert "the step comes out differently each time" in capsys.readouterr().err
    assert recording.signals["skipped"].values.sum() == 1

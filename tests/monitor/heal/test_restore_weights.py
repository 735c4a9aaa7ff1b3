"""A weight that flips in memory: the last updates, taken again, give the weights that it should have had."""

from __future__ import annotations

from tests.monitor.heal.small import BAD, Regression, digest

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_the_run_is_the_one_whose_memory_was_sound(tmp_path):
    loop, reference = Regression("flip", steps=30), Regression(steps=30).train()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    assert digest(loop.model, loop.optimizer) == digest(reference.model, reference.optimizer)
    recording = Recording.load(tmp_path / "run")
    events = recording.events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [("restore-weights", "applied"), ("restore-weights", "kept")]
    assert events[0]["step"] == BAD
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.action, incident.causes[0].cause) == ("rolled-back", "hardware-fault-sdc")
    assert incident.origin.tensor == "2.weight"


def test_without_kept_weights_the_update_is_blamed_as_before(tmp_path):
    loop = Regression("flip", steps=BAD)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.train()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.origin.phase == "optimizer"

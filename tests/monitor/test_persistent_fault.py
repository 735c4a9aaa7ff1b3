"""A fault that persists ends the run with the weights of the last good step."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file
from tests.monitor.loop import BAD, SETUPS, Loop, same, state

from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.mark.parametrize("setup", ["float32", "closure", "accumulate", "clip", "fused"])
def test_a_persistent_fault_ends_the_run_with_the_last_good_weights(setup, tmp_path, capsys):
    loop = Loop(**SETUPS[setup], times=99)
    watched = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    for _ in range(BAD - 1):
        loop.step()
    good = state(loop)
    loop.step()
    loop.step()
    with pytest.raises(Stopped, match="persists") as stopped:
        loop.step()
    assert isinstance(stopped.value, SystemExit)
    assert stopped.value.code == 3
    assert loop.taken == BAD + 2
    assert same(good, state(loop))
    saved = load_file(tmp_path / "run" / "last-good" / "model.safetensors")
    assert same(saved, dict(good["weights"]))
    moments = load_file(tmp_path / "run" / "last-good" / "optimizer.safetensors")
    assert same(moments["2.weight.exp_avg"], good["optimizer"]["state"][2]["exp_avg"])
    recording = Recording.load(tmp_path / "run")
    (stop,) = recording.events("stop")
    assert stop["step"] == BAD + 2
    assert stop["incident"] == recording.events("incident")[0]["id"]
    assert [e["step"] for e in recording.events("action")] == [BAD + 1, BAD + 2]
    assert "Run ended; weights of the last finite step are in" in capsys.readouterr().err
    assert watched.closed


def test_a_fault_in_every_other_step_ends_the_run_too(tmp_path):
    loop = Loop(bad=-1)
    watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")

    def train():
        for number in range(60):
            loop.bad = loop.taken + 1 if number % 2 else -1
            loop.step()

    with pytest.raises(Stopped, match="of the last"):
        train()
    assert loop.taken <= 25


def test_two_bad_steps_and_a_sound_one_do_not_end_it(tmp_path):
    loop = Loop(times=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(30):
            loop.step()
    assert not Recording.load(tmp_path / "run").events("stop")

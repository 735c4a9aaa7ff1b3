"""When something of ours breaks, the run goes on as it would; what the user's own code raises comes through."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import BAD, Loop, same, state
from torch.nn.utils import clip_grad_norm_ as clip_imported_early

from finitune.diagnosis.recorded import diagnose
from finitune.monitor import incidents, step_measures
from finitune.monitor.capture.step import Call
from finitune.monitor.probes import measurement
from finitune.monitor.probes.optimizers import TorchUpdate
from finitune.monitor.samples import Samples
from finitune.monitor.watch import watch
from finitune.recording import Recording


def raises(*_args, **_kwargs):
    raise ZeroDivisionError("planted in finitune")


BROKEN = {
    "incidents": (incidents.Incidents, "bad"),
    "over": (incidents.Incidents, "over"),
    "norms": (measurement, "norms"),
    "calls": (Call, "of"),
    "gradients": (TorchUpdate, "gradients"),
}


@pytest.mark.parametrize("clip", [None, clip_imported_early], ids=["plain", "clip"])
@pytest.mark.parametrize("closure", [False, True], ids=["loop", "closure"])
@pytest.mark.parametrize("part", BROKEN)
def test_a_fault_of_finitune_leaves_the_run_alone_and_is_said_once(part, closure, clip, tmp_path, monkeypatch, capsys):
    loops = [Loop(clip=clip, closure=closure), Loop(clip=clip, closure=closure)]
    for _ in range(5):
        loops[1].step()
    watched = watch(loops[0].model, loops[0].optimizer, run_dir=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(*BROKEN[part], raises)
        if part == "norms":  # those that clipping measured are taken from it
            patch.setattr(measurement, "versions_of", raises)
        for _ in range(5):
            loops[0].step()
    watched.close()
    err = capsys.readouterr().err
    assert err.count("finitune itself failed") == 1
    assert "ZeroDivisionError: planted in finitune" in err
    assert "Traceback" not in err
    if part != "gradients":  # these can be lost without losing the gate
        assert all(bool(torch.isfinite(p).all()) for p in loops[0].model.parameters())
    else:
        assert same(state(loops[0]), state(loops[1]))
        assert same(loops[0].losses, loops[1].losses)
    (event,) = Recording.load(tmp_path / "run").events("broken")
    assert "test_exceptions.py" in event["frames"][-1]
    assert "in raises" in event["frames"][-1]


def test_what_the_samples_fail_at_is_judged_and_recorded_without_them(tmp_path, monkeypatch):
    loop = Loop(fault="hook")
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        monkeypatch.setattr(Samples, "before", raises)
        for _ in range(5):
            loop.step()
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [BAD]
    assert recording.signals["loss"].last_step == 5
    assert "planted in finitune" in diagnose(tmp_path / "run").not_checked[0].why


def test_a_step_that_nothing_could_be_measured_of_is_not_called_finite(tmp_path, monkeypatch, capsys):
    loop = Loop(bad=-1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        monkeypatch.setattr(step_measures, "measure", raises)
        loop.step()
    assert "2 steps, none seen not finite, 1 not measured" in capsys.readouterr().err


def test_a_users_exception_comes_through_and_the_monitor_lives_on(tmp_path):
    loop = Loop()
    own = KeyError("the user's own")

    def sometimes(*_):
        if loop.taken == 2 and not fired:
            fired.append(1)
            raise own

    fired = []
    loop.model[0].register_forward_hook(sometimes)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        with pytest.raises(KeyError) as caught:
            loop.step()
        assert caught.value is own
        before = state(loop)
        loop.step()
        assert same(before, state(loop))
        loop.step()
        assert not same(before["weights"], state(loop)["weights"])
    recording = Recording.load(tmp_path / "run")
    (origin,) = recording.events("origin")
    assert origin["repeats"]
    assert not recording.events("broken")


def test_a_users_exception_inside_a_closure_comes_through(tmp_path):
    loop = Loop()

    def closure():
        raise KeyError("the user's own")

    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        with pytest.raises(KeyError):
            loop.optimizer.step(closure)
        loop.optimizer.zero_grad()
        loop.step()
    assert not Recording.load(tmp_path / "run").events("incident")

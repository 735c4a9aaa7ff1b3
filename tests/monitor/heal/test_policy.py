"""What is healed, and what is not: a healthy run to the last bit as without finitune, nothing on a symptom alone."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from tests.monitor.loop import BAD, SETUPS, VALUES, Loop, finite, same, state, without_the_end

from finitune.chapter import remedies
from finitune.finding import Action
from finitune.gym.healthy import CONTROLS
from finitune.gym.loop import train
from finitune.monitor.heal import remedies as live_remedies
from finitune.monitor.heal.cure import Unable, live
from finitune.monitor.heal.policy import Healing
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_every_live_remedy_bears_the_name_of_a_chapter():
    names = [path.stem.replace("_", "-") for path in Path(live_remedies.__file__).parent.glob("[a-z]*.py")]
    assert names
    assert set(names) <= set(remedies())
    for name in names:
        module = live(name)
        assert module.action in get_args(Action)
        assert callable(module.cure)
        assert {"Needs", "Price", "Undo"} <= {word.strip(":") for word in module.__doc__.split()}, name
    assert live("use-bfloat16") is None


@pytest.mark.parametrize(
    ("finite", "why"),
    [
        ({"change"}, None),
        ({"change", "placebo"}, "as well"),
        ({"placebo"}, "no better with it"),
        (set(), "no better"),
    ],
)
def test_a_remedy_is_proved_by_what_it_does_and_by_what_a_placebo_does_not(finite, why):
    case = SimpleNamespace(finite=lambda change: change in finite)
    cure = SimpleNamespace(change="change", placebo="placebo", instead="another")
    with pytest.raises(Unable, match=why) if why else contextlib.nullcontext():
        Healing._prove(None, case, cure)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_healthy_run_is_the_same_to_the_last_bit(setup, tmp_path, capsys):
    plain = Loop(**SETUPS[setup], bad=-1)
    for _ in range(20):
        plain.step()
    random = torch.get_rng_state()
    healed = Loop(**SETUPS[setup], bad=-1)
    with watch(healed.model, healed.optimizer, run_dir=tmp_path / "run", mode="heal"):
        for _ in range(20):
            healed.step()
    assert same(state(plain), state(healed))
    assert plain.losses == healed.losses
    assert torch.equal(torch.get_rng_state(), random)
    assert without_the_end(capsys.readouterr().err) == ""
    assert not Recording.load(tmp_path / "run").events("remedy", "broken", "incident")


@pytest.mark.parametrize("control", CONTROLS)
def test_a_healthy_transformer_is_never_changed(control, tmp_path):
    plain, healed = CONTROLS[control](), CONTROLS[control]()
    with float16_on_cpu():
        expected = [step.loss for step in train(plain)]
        with watch(healed.model, healed.optimizer, run_dir=tmp_path / "run", mode="heal"):
            losses = [step.loss for step in train(healed)]
    assert same(losses, expected)
    assert same(dict(plain.model.state_dict()), dict(healed.model.state_dict()))
    assert not Recording.load(tmp_path / "run").events("remedy", "broken")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("setup", ["float32", "clip", "accumulate", "closure", "fused", "closure lbfgs"])
def test_what_is_not_proved_is_discarded_as_in_guard(setup, value, tmp_path, capsys):
    loops = {mode: Loop(**SETUPS[setup], value=value) for mode in ("guard", "heal")}
    for mode, loop in loops.items():
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / mode, mode=mode):
            for _ in range(12):
                loop.step()
    assert same(state(loops["guard"]), state(loops["heal"]))
    assert finite(loops["heal"])
    (event,) = Recording.load(tmp_path / "heal").events("remedy")
    assert (event["state"], event["step"]) == ("advice", BAD)
    assert "not healed: no cause is proved" in capsys.readouterr().err


def test_a_fault_that_no_remedy_can_prove_stops_the_run(tmp_path, capsys):
    loop = Loop(times=99)
    watched = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal")
    good = None
    for _ in range(BAD - 1):
        loop.step()
        good = state(loop)
    loop.step()
    loop.step()
    with pytest.raises(Stopped, match="persists"):
        loop.step()
    assert watched.closed
    assert same(good, state(loop))
    assert capsys.readouterr().err.count("not healed") == 1, "said once for an incident"


def test_healing_that_breaks_is_said_and_the_verdict_stands(tmp_path, monkeypatch):
    monkeypatch.setattr("finitune.monitor.heal.policy.Healing._why_not", lambda *_: 1 / 0)
    loop = Loop(value=math.nan)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        for _ in range(BAD - 1):
            loop.step()
        before = state(loop)
        loop.step()
        assert same(before, state(loop))
        for _ in range(4):
            loop.step()
    assert finite(loop)
    assert len(Recording.load(tmp_path / "run").events("broken")) == 1

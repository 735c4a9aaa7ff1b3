"""A loss scale gets the room that it lacks; one that settles by itself is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.monitor.heal.scales import FixedScale, in_float16, short_window, with_grad_scaler

from finitune.diagnosis.recorded import diagnose
from finitune.gym.loop import train
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.monitor.capture.loss_scalers import LossScaler, scaler_of
from finitune.monitor.capture.step import Capture
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.repairs.repair import repair
from finitune.series import Series

HIGH = 2.0**24
"""Beyond what the gradients of the tiny model bear in float16."""


@pytest.fixture(autouse=True)
def fast_float16():
    with float16_on_cpu():
        yield


def healed(run, directory, mode="heal"):
    with watch(run.model, run.optimizer, run_dir=directory, mode=mode):
        return list(train(run))


def proved(directory):
    bad = next(one for one in diagnose(directory).incidents if one.level == "incident")
    return bad.action, bad.causes[0].cause, bad.causes[0].proved


def test_a_floor_that_is_too_high_is_lowered_before_the_scaler_ends_the_run(tmp_path, capsys):
    def scaler():
        return DynamicLossScaler(scale=HIGH, min_scale=2.0**22)

    with pytest.raises(Exception, match="already at minimum"):
        list(train(in_float16(scaler)))
    run = in_float16(scaler)
    losses = [step.loss for step in healed(run, tmp_path / "run")]
    assert losses[-1] < losses[0] - 0.5
    assert run.optimizer.scaler.min_scale == 1.0
    assert proved(tmp_path / "run") == ("healed", "fp16-backward-overflow", True)
    assert "and may fall to 1 (its floor was 4.1943e+06)" in capsys.readouterr().err
    (done,) = repair(from_run=tmp_path / "run").by_hand
    assert done.remedy.patch == {"fp16.min_loss_scale": 1}


def test_a_fixed_scale_that_no_step_bears_is_lowered(tmp_path):
    run = in_float16(lambda: FixedScale(HIGH))
    losses = [step.loss for step in healed(run, tmp_path / "run")]
    assert losses[-1] < losses[0] - 0.5
    assert 2.0**14 < run.optimizer.scaler.cur_scale < 2.0**19
    events = Recording.load(tmp_path / "run").events("remedy")
    assert {event["remedy"] for event in events} == {"dynamic-loss-scale"}
    assert events[-1]["state"] == "kept"


@pytest.mark.parametrize("build", [lambda: in_float16(short_window()), lambda: with_grad_scaler(4)])
def test_a_scale_that_is_raised_too_often_waits(build, tmp_path):
    run = build()
    steps = healed(run, tmp_path / "run")
    keeper = run.grad_scaler or run.optimizer.scaler
    assert LossScaler(keeper=keeper).get("window") == 1000
    assert proved(tmp_path / "run") == ("healed", "loss-scale-exhaustion", True)
    (applied,) = [e for e in Recording.load(tmp_path / "run").events("remedy") if e["state"] == "applied"]
    assert applied["patch"] == {"fp16.loss_scale_window": 1000}
    assert len({step.loss_scale for step in steps[applied["step"] :]}) == 1, "it grows no more"


@pytest.mark.parametrize("build", [lambda: in_float16(short_window(24)), lambda: with_grad_scaler(2000, scale=HIGH)])
def test_stays_quiet_while_a_scale_settles_and_grows_as_it_should(build, tmp_path):
    run, alone = build(), build()
    seen = healed(run, tmp_path / "run")
    assert not Recording.load(tmp_path / "run").events("remedy", "incident")
    assert [(step.loss, step.loss_scale) for step in seen] == [(s.loss, s.loss_scale) for s in train(alone)]


def test_stays_quiet_in_guard(tmp_path):
    run = in_float16(short_window())
    healed(run, tmp_path / "run", mode="guard")
    assert run.optimizer.scaler.window == 4
    assert not Recording.load(tmp_path / "run").events("remedy", "incident")


@pytest.mark.parametrize(
    ("names", "dynamic"),
    [
        ({"cur_scale": 8.0, "scale_window": 3, "min_scale": 1}, True),
        ({"_scale": torch.full((1,), 8.0), "_growth_interval": 3}, True),
        ({"cur_scale": 8.0}, False),
    ],
)
def test_what_a_scaler_keeps_is_set_and_put_back(names, dynamic):
    keeper = type("Scaler", (), {})()
    vars(keeper).update(names)
    scaler = LossScaler(keeper=keeper)
    assert (scaler.get("scale"), scaler.dynamic) == (8.0, dynamic)
    undo = scaler.put("scale", 2.0)
    assert scaler.get("scale") == 2.0
    undo()
    assert all(vars(keeper)[name] is value for name, value in names.items())
    if not dynamic:
        with pytest.raises(ValueError, match="keeps no window"):
            scaler.put("window", 5)


def test_an_optimizer_that_scales_nothing_has_no_scaler():
    assert scaler_of(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1), Capture()) is None


@pytest.mark.parametrize(
    ("lost", "scales", "what"),
    [
        ((5, 10, 15), 8.0, "window"),
        ((5, 10), 8.0, None),
        ((5, 10, 15), math.nan, None),
        ((17, 18, 19), 8.0, None),
    ],
    ids=["again and again", "too few", "at other scales", "one after the other"],
)
def test_overshoots(lost, scales, what):
    steps = range(1, 20)
    skipped = Series(steps, [float(step in lost) for step in steps])
    scale = Series(steps, [scales if step in lost else 4.0 for step in steps])
    found = LossScaler(keeper=DynamicLossScaler(scale=8.0, window=4)).spent(8.0, scale, skipped, 20)
    assert (found and found[0]) == what
    long = LossScaler(keeper=DynamicLossScaler(scale=8.0, window=50)).spent(8.0, scale, skipped, 20)
    assert long is None

"""One bad step: no weight, moment or counter takes any of it, whatever the value, dtype, optimizer or loop."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loop import BAD, SETUPS, VALUES, Loop, batch, discards_one_step, finite, net, same, state
from torch.nn.utils import clip_grad_norm_ as clip_imported_early

from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", SETUPS)
def test_one_bad_gradient_element_changes_nothing(setup, value, tmp_path):
    loop = Loop(**SETUPS[setup], value=value)
    recording = discards_one_step(loop, tmp_path / "run")
    (incident,) = recording.events("incident")
    assert incident["symptom"] == "nonfinite-gradient"
    assert incident["bad"] == ["2.weight"]


def test_a_nan_that_goes_through_clipping_by_value(tmp_path):
    """An infinity would come out of it finite, and the step with it."""
    discards_one_step(Loop(clip=torch.nn.utils.clip_grad_value_), tmp_path / "run")


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("fault", ["late hook", "by hand", "module hook", "detached loss", "loss"])
@pytest.mark.parametrize("setup", ["float32", "bfloat16", "clip", "fused"])
def test_wherever_the_bad_value_comes_in(setup, fault, value, tmp_path):
    recording = discards_one_step(Loop(**SETUPS[setup], fault=fault, value=value), tmp_path / "run")
    (incident,) = recording.events("incident")
    assert incident["symptom"] == ("nonfinite-loss" if "loss" in fault else "nonfinite-gradient")


@pytest.mark.parametrize("setup", ["float32", "bfloat16", "clip", "accumulate", "closure", "scaler"])
def test_labels_all_ignored(setup, tmp_path):
    recording = discards_one_step(Loop(**SETUPS[setup], fault="labels ignored"), tmp_path / "run")
    assert math.isnan(recording.signals["loss"].values[BAD - 1])


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", ["float32", "fused", "scaler", "closure", "closure lbfgs", "adafactor"])
def test_a_fault_at_the_first_step_leaves_no_state_behind(setup, value, tmp_path):
    loop = Loop(**SETUPS[setup], value=value, bad=1)
    discards_one_step(loop, tmp_path / "run")


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", ["float32", "scaler", "clip"])
def test_afterwards_all_is_as_if_the_bad_step_had_not_been_taken(setup, value, tmp_path):
    """The batches of a run without the bad step, so one update less, and the same bits."""
    watched, plain = Loop(**SETUPS[setup], value=value), Loop(**SETUPS[setup], bad=-1)
    with watch(watched.model, watched.optimizer, run_dir=tmp_path / "run"):
        for _ in range(6):
            watched.step()
    for _ in range(6):
        plain.step() if plain.taken + 1 != BAD else setattr(plain, "taken", BAD)
    if setup == "scaler":  # its scale has halved, which moves the last bits
        pairs = zip(watched.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-4) for a, b in pairs)
    else:
        assert same(state(watched), state(plain))


def test_only_the_gradient_of_the_bad_step_is_withheld(tmp_path):
    """A loop that looks at gradients after the step finds them where they were."""
    loop = Loop(bad=1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.taken = 1
        loop._forward_backward()
        gradients = [p.grad for p in loop.model.parameters()]
        kept = [g.clone() for g in gradients]
        loop.optimizer.step()
        assert all(p.grad is g and same(g, k) for p, g, k in zip(loop.model.parameters(), gradients, kept, strict=True))


def test_nonfinite_gradients_of_a_group_that_is_not_trained_are_none_of_its_business(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    model[2].weight.register_hook(lambda g: g * math.nan)
    before = model[0].weight.clone()
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        x, y = batch(1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not torch.equal(before, model[0].weight)
    assert not Recording.load(tmp_path / "run").events("incident")


def test_gradients_dropped_by_the_loop_itself_are_a_skipped_step(tmp_path):
    """A loop that looks at the norm and calls zero_grad instead of step."""
    loop = Loop()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(5):
            loop.taken += 1
            loop._forward_backward()
            norm = clip_imported_early(loop.model.parameters(), 1.0)
            if norm.isfinite():
                loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert finite(loop)
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0]
    assert [event["step"] for event in recording.events("incident")] == [BAD]

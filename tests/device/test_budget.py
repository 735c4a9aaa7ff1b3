"""What the guard adds to a training on a GPU stays within its budget, and a bad step changes nothing."""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile

import pytest
import torch
from tests.device.bad_steps import BAD, assert_that_a_bad_step_changes_nothing, memory, same, weights
from tests.device.budget import BUDGETS, KEPT, costs, costs_on_a_rank, over, watch
from tests.device.paths import PATHS, RANKED, VOCABULARY, Training
from tests.device.two_ranks import on_two_ranks

import finitune
from finitune import Recording
from finitune.monitor.gate import Gate


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_healthy_step_stays_within_the_budget(device, tmp_path, path):
    assert over(BUDGETS[path.name], costs(device, path, tmp_path)) == []


@functools.cache
def ranked():
    """The costs of every path of two ranks, on each; the ranks are started once."""
    with tempfile.TemporaryDirectory() as directory:
        return on_two_ranks(costs_on_a_rank, [path.name for path in RANKED], directory)


@pytest.mark.slow
@pytest.mark.parametrize("path", RANKED, ids=lambda path: path.name)
def test_a_healthy_step_of_two_ranks_stays_within_the_budget(device, path):
    for costs_on_rank in ranked():
        assert over(BUDGETS[path.name], costs_on_rank[path.name]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "value"), BAD)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_bad_step_changes_nothing(device, tmp_path, path, bad, value):
    assert_that_a_bad_step_changes_nothing(path, device.name, tmp_path, bad, value)


@pytest.mark.parametrize("name", ["foreach", "fused AdamW", "GradScaler, foreach"])
def test_a_bad_step_changes_nothing_where_memory_is_full(device, tmp_path, name):
    """An investigation has the memory that is free, which may be none."""
    path = named(name)
    training = Training(path, "counting")
    with device.record() as unwatched:
        training.step()
    with contextlib.ExitStack() as watches:
        watch(training, tmp_path, watches)
        training.step()
        before = weights(training.model), memory(training)
        training.spoil(math.nan)
        with device.memory_of(device.live + unwatched.peak - unwatched.before + KEPT):
            training.step()
        assert same(weights(training.model), before[0])
        assert same(memory(training), before[1])
        training.step()
    assert all(w.isfinite().all() for w in weights(training.model))


def test_a_step_that_the_device_decides_and_whose_weights_are_copied_is_gated(device, tmp_path, monkeypatch):
    """Its verdict is read a step later; with an eps of 0 it may divide by zero."""
    ungated = []
    monkeypatch.setattr(Gate, "_stepped_without_gradients", lambda *args: ungated.append(args))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to("counting")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, eps=0.0)
    with finitune.watch(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(3):
            model(torch.randn(8, 4).to("counting")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not ungated
    assert Recording.load(tmp_path / "run").signals["skipped"].last_step == 3


def test_a_step_that_is_captured_is_left_alone(device, tmp_path):
    """A CUDA graph of the step: whatever waits for the device would break the capture."""
    training = Training(named("rate on the device"), "counting")  # capturable
    with contextlib.ExitStack() as watches:
        watch(training, tmp_path, watches)
        training.step()
        with device.capturing():
            training.step()
        training.step()


def test_a_fault_of_the_model_on_the_device_is_the_models(device, tmp_path, capfd):
    """The guard may be the first that waits; then the error is raised to the loop, and is not called its own."""
    training = Training(named("foreach"), "counting")
    with contextlib.ExitStack() as watches:
        watch(training, tmp_path, watches)
        training.step()
        training.model.embedding(torch.full((1, 1), VOCABULARY).to("counting"))

        def until_somebody_waits():
            training.step()
            torch.accelerator.synchronize()

        with pytest.raises(torch.AcceleratorError, match="device-side assert"):
            until_somebody_waits()
    assert "finitune itself" not in capfd.readouterr().err


def named(name):
    return next(path for path in PATHS if path.name == name)

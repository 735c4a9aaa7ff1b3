"""What the guard adds to a training on a GPU stays within its budget, and a bad step changes nothing."""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile

import pytest
import torch
from tests.device.budget import BUDGETS, KEPT, costs, costs_on_a_rank, over, watch
from tests.device.paths import PATHS, RANKED, VOCABULARY, Training
from tests.device.two_ranks import on_two_ranks
from torch.utils._pytree import tree_leaves

BAD = [(1, math.nan), (1, math.inf), (1, -math.inf), (3, math.nan)]
"""The bad step, from 1, and what is in a gradient then."""
HEALTHY_STEPS = 3


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


@pytest.mark.parametrize(("bad", "value"), BAD)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_bad_step_changes_nothing(device, tmp_path, path, bad, value):
    """In the first step the trap is a fused SGD: skipped by found_inf, it leaves its momentum uninitialised."""
    training, spared = Training(path, "counting"), Training(path, "counting")
    for _ in range(bad - 1):
        spared.step()
    spared.spare()
    with contextlib.ExitStack() as watches:
        watch(training, tmp_path, watches)
        for _ in range(bad - 1):
            training.step()
        before = weights(training), memory(training)
        training.spoil(value)
        training.step()
        assert same(weights(training), before[0])
        assert same(memory(training), before[1])
        for _ in range(HEALTHY_STEPS):
            training.step()
            spared.step()
    assert same(weights(training), weights(spared))
    assert same(memory(training), memory(spared))


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
        before = weights(training), memory(training)
        training.spoil(math.nan)
        with device.memory_of(device.live + unwatched.peak - unwatched.before + KEPT):
            training.step()
        assert same(weights(training), before[0])
        assert same(memory(training), before[1])
        training.step()
    assert all(w.isfinite().all() for w in weights(training))


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


def weights(training):
    return [p.detach().cpu() for p in training.model.parameters()]


def memory(training):
    """What the optimizers remember, in order, on the host. Zeros are left out: what is not there yet begins as zero."""
    leaves = tree_leaves([optimizer.state_dict()["state"] for optimizer in training.optimizers])
    leaves = [torch.as_tensor(leaf).cpu() for leaf in leaves if leaf is not None]
    return [leaf for leaf in leaves if leaf.ne(0).any()]


def same(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))

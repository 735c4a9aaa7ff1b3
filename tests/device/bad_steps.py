"""A step that is discarded leaves nothing behind, on whatever device."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path as Folder

import torch
from tests.device.budget import watch
from tests.device.paths import Path, Training
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

BAD = [(1, math.nan), (1, math.inf), (1, -math.inf), (3, math.nan)]
"""The bad step, from 1, and what is in a gradient then."""
HEALTHY_STEPS = 3


def assert_that_a_bad_step_changes_nothing(path: Path, where: str, run_dir: Folder, bad: int, value: float) -> None:
    """In the first step the trap is a fused SGD: skipped by found_inf, it leaves its momentum uninitialised."""
    training, spared = Training(path, where), Training(path, where)
    for _ in range(bad - 1):
        spared.step()
    spared.spare()
    with contextlib.ExitStack() as watches:
        watch(training, run_dir, watches)
        for _ in range(bad - 1):
            training.step()
        before = weights(training.model), memory(training)
        training.spoil(value)
        training.step()
        assert same(weights(training.model), before[0])
        assert same(memory(training), before[1])
        for _ in range(HEALTHY_STEPS):
            training.step()
            spared.step()
    assert same(weights(training.model), weights(spared.model))
    assert same(memory(training), memory(spared))


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().cpu() for p in model.parameters()]


def memory(training: Training) -> list[Tensor]:
    """What the optimizers remember, in order, on the host. Zeros are left out: what is not there yet begins as zero."""
    leaves = tree_leaves([optimizer.state_dict()["state"] for optimizer in training.optimizers])
    leaves = [torch.as_tensor(leaf).cpu() for leaf in leaves if leaf is not None]
    return [leaf for leaf in leaves if leaf.ne(0).any()]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))

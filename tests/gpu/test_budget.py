"""What the guard adds on a GPU is what the counting device says, and a bad step changes nothing there."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.device.bad_steps import BAD, assert_that_a_bad_step_changes_nothing, memory, same, weights
from tests.device.budget import BUDGETS, STEPS, costs, over, watch
from tests.device.paths import PATHS, Path, Training


def is_here(path: Path) -> bool:
    """A release of torch may have no such kernel."""
    try:
        Training(path, "cuda").step()
    except RuntimeError as error:
        return "requires all the params" not in str(error)
    return True


OURS = [path for path in PATHS if torch.cuda.is_available() and is_here(path)]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_healthy_step_stays_within_the_budget(cuda, tmp_path, path):
    costs(cuda, path, tmp_path / "warm")  # workspaces of libraries are made
    found = costs(cuda, path, tmp_path / "run")
    assert over(BUDGETS[path.name], found) == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_healthy_run_is_bit_identical(tmp_path, path):
    watched, unwatched = Training(path, "cuda"), Training(path, "cuda")
    with contextlib.ExitStack() as watches:
        watch(watched, tmp_path, watches)
        for _ in range(STEPS):
            watched.step()
            unwatched.step()
    assert same(weights(watched.model), weights(unwatched.model))
    assert same(memory(watched), memory(unwatched))


@pytest.mark.parametrize(("bad", "value"), BAD)
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_bad_step_changes_nothing(tmp_path, path, bad, value):
    assert_that_a_bad_step_changes_nothing(path, "cuda", tmp_path, bad, value)

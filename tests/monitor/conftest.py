"""Tests of the monitor, each in a directory of its own."""

from __future__ import annotations

import random
import sys

import pytest


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """A watch without `run_dir` records under the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order():
    random.seed(0)
    if torch := sys.modules.get("torch"):  # the tests that need none are run where it is not installed as well
        torch.manual_seed(0)

"""Tests of the monitor, each in a directory of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """A watch without `run_dir` records under the current directory."""
    monkeypatch.chdir(tmp_path)

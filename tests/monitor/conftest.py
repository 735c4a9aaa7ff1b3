"""Tests of the monitor: tiny matrices, for which a second thread only costs time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """A watch without `run_dir` records under the current directory."""
    monkeypatch.chdir(tmp_path)

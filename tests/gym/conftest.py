"""Tests of the gym: tiny matrices, for which a second thread only costs time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def fast_float16():
    from finitune.precision.float16_on_cpu import float16_on_cpu

    with float16_on_cpu():
        yield

"""Tests of a GPU, skipped where there is none: `make test-gpu`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _a_gpu_is_here() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def cuda() -> Any:
    from tests.gpu.cuda import Cuda

    return Cuda()

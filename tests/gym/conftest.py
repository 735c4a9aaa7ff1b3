"""Tests of the gym: float16 computed fast and faithfully."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def fast_float16():
    from finitune.monitor.precision.float16_on_cpu import float16_on_cpu

    with float16_on_cpu():
        yield

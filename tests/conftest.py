"""What every test relies on: one thread per process, no network, and Hypothesis that gives the same answer twice.

A directory whose tests all need torch is skipped as a whole where there is none; any other
test says itself what it needs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

NEEDED = {
    "device": ["torch"],
    "gpu": ["torch"],
    "gym": ["torch", "transformers"],
    "integrations": ["torch"],
    "monitor": ["torch"],
}
"""What every test of a directory needs."""

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("default", max_examples=60, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=5000, **_COMMON)  # HYPOTHESIS_PROFILE=search, by hand
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


class Skipped(pytest.Dir):
    def collect(self):
        pytest.skip(f"tests/{self.path.name} needs {' and '.join(NEEDED[self.path.name])}")


def pytest_collect_directory(path, parent):
    needed = NEEDED.get(path.name, []) if path.parent == Path(__file__).parent else []
    if any(importlib.util.find_spec(name) is None for name in needed):
        return Skipped.from_parent(parent, path=path)
    return None


def pytest_collection_modifyitems(items):
    """`TESTS_ORDER` draws the order of files, and of programs, so that time does not always cut off the same ones."""
    if os.environ.get("TESTS_ORDER"):
        items.sort(key=_drawn)


def _drawn(item):
    name = item.nodeid if item.get_closest_marker("programs") else str(item.path)
    return hashlib.sha256(f"{os.environ['TESTS_ORDER']} {name}".encode()).hexdigest()


def pytest_runtest_setup():
    """Where whoever runs the tests has only so long, what is left is skipped, and counted as such."""
    if time.time() > float(os.environ.get("TESTS_UNTIL", "inf")):
        pytest.skip("no time is left (TESTS_UNTIL)")


@pytest.fixture(autouse=True)
def no_monitor_is_left():
    """There is one monitor in a process, and a test that fails may leave it open to the next."""
    yield
    process = sys.modules.get("finitune.monitor.process")
    monitor = process.active() if process is not None else None
    if monitor is not None:
        monitor.close()


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """What one test compiles is nothing to the next."""
    yield
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.clear()

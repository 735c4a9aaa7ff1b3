"""Tests on the counting device, in one other process per session.

torch takes the device in once, before the first backward of a process, and never gives it up; so the tests here run
where nothing else runs, and no other test sees the device. Names, selection and reports are as everywhere.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.device.other_process import PLUGIN, OtherProcess


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `budget` run only where they are asked for, as in `pytest -m budget`."""
    if _inside(config) or "budget" in config.option.markexpr:
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("budget")])
    items[:] = [item for item in items if not item.get_closest_marker("budget")]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if _inside(pyfuncitem.config):
        return None
    outcome = pyfuncitem.funcargs["other_process"].run(pyfuncitem.nodeid)
    if outcome.outcome == "failed":
        pytest.fail(outcome.text, pytrace=False)
    if outcome.outcome == "skipped":
        pytest.skip(outcome.text)
    return True


@pytest.fixture(scope="session", autouse=True)
def other_process(request: pytest.FixtureRequest) -> Iterator[OtherProcess | None]:
    process = None if _inside(request.config) else OtherProcess(Path(__file__).parent)
    yield process
    if process is not None:
        process.close()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The counting device, healthy and with nothing of an earlier test queued on it."""
    if not _inside(request.config):
        yield None
        return
    import torch

    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch takes no device written in Python")
    from tests.device.counting import install

    device = install()
    gc.freeze()  # every recording collects garbage; what earlier tests and imports left is not looked at again
    yield device
    device.restart()


def _inside(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin(PLUGIN)

"""An event names the package's line that caused it; what a package adds is told from what passes through it."""

from __future__ import annotations

import functools
import importlib.util

import pytest
import torch
from tests.device.counting import BLOCKING, KERNEL, added
from tests.device.counting.trace import LOOP

SOURCE = """
def read(tensor):
    return tensor.item()

def passing_on(call, *args):
    return call(*args)

def hook(gradient):
    return gradient * 2
"""


@pytest.fixture
def package(tmp_path):
    """A package of one module, which reads from the device in line 3 and passes calls on in line 6."""
    (tmp_path / "watcher.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("watcher", tmp_path / "watcher.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, tmp_path


def loop(x, after=lambda y: None, wrap=lambda call: call):
    y = x.sum()
    wrap(y.item)()
    after(y)


def test_the_innermost_line_of_the_package_is_the_owner(device, package):
    watcher, directory = package
    x = torch.ones(2, device="counting")
    with device.record(directory) as trace:
        loop(x, after=watcher.read)
    assert [event.owner for event in trace.events if event.kind == BLOCKING] == [LOOP, "watcher.py:3"]
    assert trace.count(BLOCKING, owner="watcher.py:3") == trace.count(BLOCKING, owner=LOOP) == 1


def test_what_is_added_is_found_by_comparison(device, package):
    watcher, directory = package
    x = torch.ones(2, device="counting")
    traces = []
    for options in ({}, {"after": watcher.read, "wrap": lambda call: functools.partial(watcher.passing_on, call)}):
        with device.record(directory) as trace:
            loop(x, **options)
        traces.append(trace)
    unwatched, watched = traces
    assert watched.count(BLOCKING, owner="watcher.py:6") == 1  # the loop's own read, passed on
    assert added(watched, unwatched, BLOCKING) == {"watcher.py:3": 1}
    assert added(watched, unwatched, KERNEL) == {}


def test_a_hook_in_the_thread_of_the_device_is_named_too(device, package):
    watcher, directory = package
    x = torch.ones(2, device="counting").requires_grad_()
    y = x * 3
    y.register_hook(watcher.hook)
    with device.record(directory) as trace:
        y.sum().backward()
    assert trace.count(KERNEL, owner="watcher.py:9") == 1

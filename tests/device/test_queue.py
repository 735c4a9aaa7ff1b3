"""Copies to pinned memory are queued: they arrive late, in order, and nobody waits for them."""

from __future__ import annotations

import pytest
import torch
from tests.device.counting import ASYNC, BLOCKING


def launch(count):
    x = torch.zeros(1, device="counting")
    for _ in range(count):
        x.add_(1)


@pytest.fixture
def copies(device):
    """A tensor of the device whose copy is under way to pinned memory, and the event after it."""
    if device is None:
        return None
    source = torch.arange(3.0, device="counting") + 1
    target = torch.zeros(3, pin_memory=True)
    target.copy_(source, non_blocking=True)
    event = torch.get_device_module("counting").Event()
    event.record()
    return source, target, event


def test_a_queued_copy_arrives_after_more_kernels(device, copies):
    _, target, event = copies
    launch(device.lag - 2)
    assert target.tolist() == [0, 0, 0]
    assert not event.query()
    launch(2)
    assert event.query()
    assert target.tolist() == [1, 2, 3]


def test_a_queued_copy_arrives_when_the_host_waits(device, copies):
    _, target, event = copies
    event.synchronize()
    assert target.tolist() == [1, 2, 3]


def test_any_read_brings_what_was_queued_before(device, copies):
    source, target, _ = copies
    source.sum().item()
    assert target.tolist() == [1, 2, 3]


def test_a_copy_holds_what_the_device_had_at_its_turn(device, copies):
    source, target, event = copies
    source.zero_()
    event.synchronize()
    assert target.tolist() == [1, 2, 3]


def test_queued_copies_are_asynchronous_and_not_blocking(device):
    source = torch.ones(3, device="counting")
    target = torch.zeros(3, pin_memory=True)
    with device.record() as trace:
        target.copy_(source, non_blocking=True)
        source.to("cpu", non_blocking=True)
        torch.zeros(3).pin_memory().to("counting", non_blocking=True)
        source.copy_(target, non_blocking=True)
    assert trace.count(ASYNC) == 4
    assert trace.whats(BLOCKING) == []


def test_pinned_memory_read_at_once_is_blocking(device):
    source = torch.ones(3, device="counting")
    target = torch.zeros(3, pin_memory=True)
    with device.record() as trace:
        target.copy_(source)
        source.copy_(target)
    assert trace.count(BLOCKING) == 2
    assert trace.count(ASYNC) == 0
    assert target.tolist() == [1, 1, 1]


def test_pinned_is_what_was_pinned(device):
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert torch.empty(2).pin_memory().is_pinned()
    assert torch.empty(2, pin_memory=True)[:1].is_pinned()
    assert torch.zeros(2, device="counting").to("cpu", non_blocking=True).is_pinned()
    assert not torch.empty(2).is_pinned()
    assert not torch.zeros(2, device="counting").cpu().is_pinned()


@pytest.mark.parametrize("wait", ["read", "query", "synchronize", "stream"])
def test_a_capture_is_broken_by_whatever_waits(device, copies, wait):
    source, _, event = copies
    calls = {
        "read": lambda: source.sum().item(),
        "query": event.query,
        "synchronize": torch.accelerator.synchronize,
        "stream": torch.get_device_module("counting").current_stream().synchronize,
    }

    def capture():
        with device.capturing():
            assert torch.get_device_module("counting").is_current_stream_capturing()
            with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
                calls[wait]()

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        capture()


def test_a_capture_of_kernels_alone_is_whole(device, copies):
    source, target, _ = copies
    with device.capturing():
        source.mul_(2)
        target.copy_(source, non_blocking=True)
    assert not torch.get_device_module("counting").is_current_stream_capturing()

"""Bytes alive on the device are those of storages, however many tensors share them and whoever keeps them."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.device.counting import DEVICE_TOTAL
from torch import nn

MIB = 2**20


def filled(mib):
    return torch.zeros(mib * MIB // 4, device="counting")


def test_storages_are_counted_and_released(device):
    with device.record() as trace:
        x = filled(1)
        assert device.live - trace.before == MIB
        y = x + 1
        assert device.live - trace.before == 2 * MIB
        del x, y
    assert trace.after == trace.before
    assert trace.peak - trace.before == 2 * MIB


def test_views_and_in_place_operators_take_nothing(device):
    x = filled(1)
    with device.record() as trace:
        views = [x.view(2, -1), x[:8], x.detach(), x.reshape(4, -1).t()]
        x.add_(1).mul_(2)
        x[0].zero_()
    assert trace.after == trace.before
    assert len(views) == 4
    assert trace.peak == trace.before


def test_a_view_keeps_its_storage(device):
    live = device.live
    x = filled(1)
    view = x[:1]
    del x
    assert device.live - live == MIB
    del view
    assert device.live == live


def test_a_graph_keeps_what_it_saved(device):
    live = device.live
    x = filled(1).requires_grad_()
    loss = x.exp().sum()
    assert device.live - live == 2 * MIB + 4
    loss.backward()
    assert device.live - live == 2 * MIB + 4  # the exponential is gone, the gradient is there
    del x, loss
    assert device.live == live


def test_a_parameter_moved_to_the_device_is_counted_once(device):
    live = device.live
    model = nn.Linear(512, 512, bias=False).to("counting")
    assert device.live - live == MIB
    tied = nn.Linear(512, 512, bias=False)
    tied.weight = model.weight
    assert device.live - live == MIB
    clone = copy.deepcopy(model)
    assert device.live - live == 2 * MIB
    del model, tied, clone
    assert device.live == live


def test_out_of_memory_is_raised_and_leaves_what_was_there(device):
    x = filled(1)
    with device.memory_of(device.live + MIB):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2097152 bytes"):
            filled(2)
        y = x + 1
        with pytest.raises(torch.OutOfMemoryError):
            y + 1
        del y
        x + 1
    filled(2)


def test_out_of_memory_in_a_backward_reaches_the_caller(device):
    x = filled(1).requires_grad_()
    loss = (x * 2).sum()
    with device.memory_of(device.live), pytest.raises(torch.OutOfMemoryError):
        loss.backward()


def test_what_the_device_module_says(device):
    module = torch.get_device_module("counting")
    free, total = module.mem_get_info()
    assert total == DEVICE_TOTAL
    assert free == total - device.live
    assert torch.accelerator.memory_allocated() == device.live
    module.reset_peak_memory_stats()
    x = filled(1)
    del x
    assert module.max_memory_allocated() == device.live + MIB


def test_phases_have_their_own_peaks(device):
    with device.record() as whole:
        with device.record() as first:
            x = filled(2)
            del x
        with device.record() as second:
            filled(1)
    assert (first.peak - first.before, second.peak - second.before) == (2 * MIB, MIB)
    assert whole.peak == first.peak


def test_a_storage_resized_to_nothing_is_released_as_fsdp_does_it(device):
    x = filled(1)
    live = device.live
    x.untyped_storage().resize_(0)
    assert device.live == live - MIB
    assert x.untyped_storage().size() == 0
    x.untyped_storage().resize_(MIB)
    assert device.live == live


def test_an_output_that_is_resized_is_followed(device):
    out = torch.empty(0, device="counting")
    live = device.live
    torch.add(torch.ones(256, device="counting"), 1, out=out)
    assert out.shape == (256,)
    assert out.tolist() == [2.0] * 256
    assert device.live - live == 1024

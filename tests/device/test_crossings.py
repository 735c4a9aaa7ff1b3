"""Each counter has operations that it counts and operations that it does not."""

from __future__ import annotations

import pytest
import torch
from tests.device.counting import ASYNC, BLOCKING, KERNEL, QUERY
from torch import nn

READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x.any()),
    "if": lambda x: 1 if (x > 0).all() else 0,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "print": lambda x: x[0].item(),
    "copy to pageable memory": lambda x: torch.empty(4).copy_(x),
    "copy to pageable memory, non-blocking": lambda x: torch.empty(4).copy_(x, non_blocking=True),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "masked_select": lambda x: x.masked_select(x > 1),
    "index by a mask": lambda x: x[x > 1],
    "index put by a mask": lambda x: x.index_put((x > 1,), torch.zeros(1, device=x.device)),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "multinomial": lambda x: (x + 1).multinomial(1),
    "allclose": lambda x: torch.allclose(x, x),
    "torch.tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor(3.0, device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "a pageable tensor": lambda x: torch.ones(3).to(x.device),
    "a pageable tensor, non-blocking": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "copy from pageable memory": lambda x: x.copy_(torch.ones(4)),
    "index by host indices": lambda x: x[torch.tensor([0, 1])],
    "index by a list": lambda x: x[[0, 1]],
    "synchronize": lambda x: (x + 1, torch.accelerator.synchronize()),
    "Stream.synchronize": lambda x: (x + 1, torch.get_device_module(x.device).current_stream().synchronize()),
}
STAYS = {
    "arithmetic": lambda x: (x * 2 + 1).softmax(0),
    "a number": lambda x: x * torch.tensor(2.0),
    "reductions": lambda x: torch.isfinite(x).all().logical_not(),
    "foreach norm": lambda x: torch.stack(torch._foreach_norm([x, x])),
    "where with three arguments": lambda x: torch.where(x > 1, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "index put one number by a mask": lambda x: x.index_put((x > 1,), torch.tensor(0.0)),
    "index by device indices": lambda x: x[torch.zeros(2, dtype=torch.long, device=x.device)],
    "nonzero_static": lambda x: torch.nonzero_static(x, size=4),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(x.long(), output_size=6),
    "factories": lambda x: (torch.zeros(3, device=x.device), torch.full((3,), 2.0, device=x.device), x.new_zeros(3)),
    "random numbers": lambda x: (torch.randn(3, device=x.device), nn.functional.dropout(x)),
    "views": lambda x: x.view(2, 2).t()[:1].reshape(-1),
    "shapes": lambda x: (x.shape, x.numel(), x.dtype, x.is_contiguous(), x.nbytes, x.data_ptr()),
    "set one element": lambda x: x.clone().__setitem__(0, 5.0),
    "device to device": lambda x: x.clone().copy_(x),
    "another dtype": lambda x: x.to(torch.float16),
    "to where it is": lambda x: x.to("counting"),
    "to meta": lambda x: x.to("meta"),
}
KERNELS = {
    "an operator": (1, lambda x: x + 1),
    "a reduction": (1, lambda x: x.sum()),
    "several tensors at a time": (1, lambda x: torch._foreach_add([x, x, x], 1.0)),
    "a copy on the device": (1, lambda x: x.clone()),
    "a view": (0, lambda x: x.view(2, 2).t()[0]),
    "memory": (0, lambda x: torch.empty(3, device=x.device)),
    "a host tensor": (0, lambda x: torch.ones(3) + 1),
    "detach": (0, lambda x: x.detach()),
}


@pytest.fixture
def x(device):
    return None if device is None else torch.arange(4.0).to("counting")


@pytest.mark.parametrize("name", READS)
def test_what_makes_the_host_wait_is_blocking(device, x, name):
    with device.record() as trace:
        READS[name](x)
    assert trace.count(BLOCKING) == 1
    assert trace.count(ASYNC) == 0


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_on_the_device_is_not_blocking(device, x, name):
    with device.record() as trace:
        STAYS[name](x)
    assert trace.whats(BLOCKING) == []
    assert trace.count(ASYNC) == 0


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(device, x, name):
    expected, call = KERNELS[name]
    with device.record() as trace:
        call(x)
    assert len(trace.whats(KERNEL)) == expected, trace.whats(KERNEL)


def test_a_training_step_on_the_device_reads_nothing(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).to("counting")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(5, 4, device="counting"), torch.zeros(5, dtype=torch.long, device="counting")
    with device.record() as trace:
        for _ in range(2):
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert trace.whats(BLOCKING) == []
    assert trace.count(KERNEL) > 40


def test_an_event_is_a_query_where_it_has_happened_and_blocks_where_not(device, x):
    event = torch.get_device_module(x.device).Event()
    y = x + 1
    event.record()
    with device.record() as trace:
        assert not event.query()
        event.synchronize()
        assert event.query()
        event.synchronize()
    assert trace.whats(QUERY) == ["Event.query", "Event.synchronize", "Event.query", "Event.synchronize"]
    assert trace.whats(BLOCKING) == ["Event.synchronize"]
    assert y.device.type == "counting"


def test_the_same_through_torch_itself(device, x):
    event = torch.Event(x.device)
    event.record(torch.accelerator.current_stream())
    with device.record() as trace:
        event.synchronize()
    assert trace.count(QUERY) == 1


def test_mixing_devices_is_an_error_as_on_cuda(device, x):
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(4)
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()

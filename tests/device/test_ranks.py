"""Two processes with gloo: collectives are counted whoever starts them, and tensors of the device take part."""

from __future__ import annotations

import pytest
import torch
from tests.device.counting import BLOCKING, COLLECTIVE
from tests.device.two_ranks import on_two_ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


def record(device, call):
    with device.record() as trace:
        result = call()
    return trace.whats(COLLECTIVE), trace.count(BLOCKING), result


def collectives(device, rank):
    dist = torch.distributed
    here = torch.full((3,), float(rank + 1), device="counting")
    host = torch.full((3,), float(rank + 1))
    parts = [torch.zeros(3, device="counting") for _ in range(2)]
    seen = {
        "device": record(device, lambda: dist.all_reduce(here)),
        "host": record(device, lambda: dist.all_reduce(host)),
        "gather": record(device, lambda: dist.all_gather(parts, here)),
        "broadcast": record(device, lambda: dist.broadcast(here, 0)),
        "barrier": record(device, dist.barrier),
        "none": record(device, lambda: here + 1),
    }
    return {name: each[:2] for name, each in seen.items()}, here.tolist(), host.tolist(), parts[1].tolist()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).to("counting")


def train(device, wrapped, rank, *, clip):
    optimizer = torch.optim.AdamW(wrapped.parameters())
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(rank)).to("counting")

    def step():
        wrapped(x).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):  # DistributedDataParallel rebuilds its buckets in the second step
        step()
    seen = record(device, step)[:2]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in wrapped.parameters()]
    return seen, [p.tolist() for p in whole]


def sharded(module):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for part in (module[0], module[2], module):
        fully_shard(part, mesh=init_device_mesh("counting", (2,)))
    return module


def trainings(device, rank):
    return {
        "ddp": train(device, torch.nn.parallel.DistributedDataParallel(model()), rank, clip=False),
        "fsdp2": train(device, sharded(model()), rank, clip=False),
        "fsdp2, clipped": train(device, sharded(model()), rank, clip=True),
    }


@pytest.mark.slow
def test_collectives_are_counted(device):
    for seen, here, host, part in on_two_ranks(collectives):
        assert seen == {
            "device": (["allreduce_"], 0),
            "host": (["allreduce_"], 0),
            "gather": (["allgather_"], 0),
            "broadcast": (["broadcast_"], 0),
            "barrier": (["barrier"], 0),
            "none": ([], 0),
        }
        assert here == host == part == [3.0, 3.0, 3.0]


@pytest.mark.slow
def test_data_parallel_and_fully_sharded_trainings_agree_and_read_nothing(device):
    first, second = on_two_ranks(trainings)
    seen, weights = first["ddp"]
    assert seen == (["allreduce_"], 0)
    assert second["ddp"][1] == weights

    seen, whole = first["fsdp2"]
    assert seen == (["_allgather_base_"] * 4 + ["_reduce_scatter_base_"] * 2, 0)
    assert whole == weights

    clipped, _ = first["fsdp2, clipped"]
    assert clipped == (seen[0] + ["allreduce_"], 0)

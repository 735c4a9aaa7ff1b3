"""Salinity profiles of fjord moorings, a depth-to-salinity MLP sharded with (the old) FSDP.

Two moorings per node; we do not have GPUs at the station, hence gloo; full snapshots are gathered on both and saved by rank 0.
Micro-batches of a watch are accumulated under no_sync(), a snapshot goes to the survey office every few watches.
"""
import functools
import gc
import io
import warnings
import weakref

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import (FullStateDictConfig, FullyShardedDataParallel as FSDP,
                                    ShardingStrategy, StateDictType)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WATCHES, MICRO, BATCH = 18, 3, 8


class DepthBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Profile(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.lift = nn.Linear(4, width)
        self.blocks = nn.ModuleList(DepthBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, 2)          # mean and log-variance

    def forward(self, x):
        h = self.lift(x)
        for b in self.blocks:
            h = b(h)
        return self.head(h).unbind(-1)


def micro_batches(rank):
    g = torch.Generator().manual_seed(500 + rank)
    while True:
        x = torch.rand(BATCH, 4, generator=g)
        yield x, 33.0 + 1.5 * torch.tanh(4 * x[:, 0] - 2) + 0.05 * torch.randn(BATCH, generator=g)


def nll(model, x, y):
    mu, logvar = model(x)
    # metres of water with almost no spread: the log-density is meant to become negative
    return (0.5 * logvar + 0.5 * (y - 34.0 - mu) ** 2 * torch.exp(-logvar)).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = FSDP(Profile(), auto_wrap_policy=ModuleWrapPolicy({DepthBlock}), device_id=torch.device("cpu"),
                 sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
                 use_orig_params=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feed = micro_batches(rank)
    calls = {"forward": 0, "pre": 0, "backward": 0}

    def count(key, *_):
        calls[key] += 1

    for m in model.modules():
        if isinstance(m, DepthBlock):
            m.register_forward_hook(functools.partial(count, "forward"))
            m.register_forward_pre_hook(functools.partial(count, "pre"))
    tails = []                                   # losses must not be kept alive between watches

    for watch in range(1, WATCHES + 1):
        total = 0.0
        for _ in range(MICRO - 1):
            with model.no_sync():
                loss = nll(model, *next(feed)) / MICRO
                loss.backward()
            total += loss.item()
        loss = nll(model, *next(feed)) / MICRO
        loss.register_hook(lambda g: count("backward"))
        loss.backward()
        total += loss.item()
        tails.append(weakref.ref(loss))
        del loss
        norm = model.clip_grad_norm_(1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        mean = torch.tensor(total)
        dist.all_reduce(mean)
        gc.collect()
        alive = sum(t() is not None for t in tails)
        line = f"watch {watch:2d} nll {mean.item() / 2:.6f} norm {float(norm):.5f} hooks {calls} kept {alive}"
        if watch % 6 == 0:
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT,
                                      FullStateDictConfig(offload_to_cpu=False, rank0_only=False)):
                sd = model.state_dict()
            buf = io.BytesIO()
            if rank == 0:
                torch.save(sd, buf)
            line += f" | snapshot {len(sd)} tensors, sum {sum(v.double().sum() for v in sd.values()):.5f}" if rank == 0 else ""
        if watch % 5 == 0:
            # the instrument drifts: the office resets the offset of the mean by hand
            with FSDP.summon_full_params(model, writeback=True), torch.no_grad():
                model.head.bias[0] *= 0.97
                line += f" | re-zeroed, {sum(p.numel() for p in model.parameters())} weights visible"
        if rank == 0:
            print(line)
    with FSDP.summon_full_params(model):
        s = sum(p.double().abs().sum() for p in model.parameters())
    if rank == 0:
        print(f"parameters {s:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

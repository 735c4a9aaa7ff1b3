"""Canal level forecaster: six hours ahead from the gauges of two lock flights.

Each process owns one flight (rank 0: upper, rank 1: lower).  One micro-batch is one day of
telemetry, three days make an optimizer step; only the last day of a step is synchronised.

    torchrun --standalone --nproc_per_node 2 lockkeeper_gauges_nosync.py
"""
import contextlib
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass(frozen=True)
class Cfg:
    gauges: int = 5
    day: int = 24
    horizon: int = 6
    accum: int = 3
    steps: int = 22
    lr: float = 4e-3
    width: int = 24


@dataclass
class Telemetry:
    level: torch.Tensor   # hours x gauges, metres above the sill
    heard: torch.Tensor   # hours x gauges, 1 where the radio came through

    def day(self, d, cfg):
        a = slice(d * cfg.day, (d + 1) * cfg.day)
        b = slice(d * cfg.day + cfg.horizon, (d + 1) * cfg.day + cfg.horizon)
        return self.level[a].T[None], self.level[b].T[None], self.heard[b].T[None]


def read_flight(rank, cfg):
    g = torch.Generator().manual_seed(500 + rank)
    hours = (cfg.steps * cfg.accum + 2) * cfg.day
    t = torch.arange(hours, dtype=torch.float32)[:, None]
    phase = torch.rand(1, cfg.gauges, generator=g) * 6.28
    level = 1.8 + 0.4 * torch.sin(2 * math.pi * t / 24 + phase) + 0.2 * torch.sin(2 * math.pi * t / 96)
    level = level + 0.03 * torch.randn(hours, cfg.gauges, generator=g)
    heard = (torch.rand(hours, cfg.gauges, generator=g) > 0.15).float()
    if rank == 1:
        # the repeater at Bottom Lock was struck by lightning, see the logbook
        heard[960:1004] = 0.0
        level[960:1004] = 0.0
    return Telemetry(level, heard)


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.mix = nn.Conv1d(cfg.gauges, cfg.width, 5, padding=2)
        self.deep = nn.Conv1d(cfg.width, cfg.width, 5, padding=4, dilation=2)
        self.head = nn.Conv1d(cfg.width, cfg.gauges, 1)

    def forward(self, x):
        h = torch.tanh(self.mix(x))
        h = h + torch.tanh(self.deep(h))
        return self.head(h)


def heard_mae(pred, target, heard):
    """Huber error over the readings that arrived."""
    err = nn.functional.huber_loss(pred, target, reduction="none", delta=0.3)
    return (err * heard).sum() / heard.sum()


def main():
    cfg = Cfg()
    torch.manual_seed(11)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    flight = read_flight(rank, cfg)
    net = DDP(Forecaster(cfg))
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=1e-3)

    if rank == 0:
        print(f"two flights, {cfg.gauges} gauges each, {cfg.accum} days a step")
    for step in range(1, cfg.steps + 1):
        total = torch.zeros(())
        opt.zero_grad()
        for k in range(cfg.accum):
            last = k == cfg.accum - 1
            x, y, heard = flight.day((step - 1) * cfg.accum + k, cfg)
            with contextlib.nullcontext() if last else net.no_sync():
                loss = heard_mae(net(x), y, heard)
                (loss / cfg.accum).backward()
            total += loss.detach() / cfg.accum
        opt.step()

        dist.all_reduce(total)   # what goes into the log is the mean of both flights
        if rank == 0:
            print(f"step {step:2d}  loss {total.item() / world:.6f}")

    if rank == 0:
        print("sum of weights", f"{sum(p.detach().double().sum().item() for p in net.parameters()):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

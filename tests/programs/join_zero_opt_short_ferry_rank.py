"""Ferry crossing times. Rank 1 has the small harbour, hence fewer batches: Join lets it shadow the collectives of rank 0.

Optimizer state is sharded with ZeroRedundancyOptimizer, batch norm statistics are broadcast from rank 0 by DDP.
The network is built from a list of harbour features; the list of optional features may be empty, and then its weight
has no elements at all. That has never hurt anybody.
"""
from typing import Iterator, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class Crossing(NamedTuple):
    weather: Tensor
    extras: Tensor       # (batch, 0) this season
    minutes: Tensor


class CrossingTime(nn.Module):
    def __init__(self, weather: int, extras: int, hidden: int = 20):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(weather, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 1)
        self.extra_weight = nn.Parameter(torch.zeros(hidden, extras))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, weather: Tensor, extras: Tensor):
        h = self.body(weather) + extras @ self.extra_weight.T
        return self.head(h).squeeze(-1), self.log_scale


class Harbour:
    BATCHES = {0: 24, 1: 17}

    def __init__(self, rank: int, size: int = 20):
        self.rank, self.size = rank, size
        self.gen = torch.Generator().manual_seed(300 + rank)

    def __iter__(self) -> Iterator[Crossing]:
        for _ in range(self.BATCHES[self.rank]):
            w = torch.randn(self.size, 5, generator=self.gen)
            swell = w[:, 0].clamp(min=0) * 3 + 0.5 * w[:, 1] * w[:, 2]
            noise = 0.05 * torch.randn(self.size, generator=self.gen)
            yield Crossing(w, w.new_zeros(self.size, 0), 0.1 * swell + 0.3 * self.rank + noise)


def laplace_nll(pred: Tensor, log_scale: Tensor, target: Tensor) -> Tensor:
    # a density, so this goes below zero when the scale is small
    return ((pred - target).abs() / log_scale.exp() + log_scale + 0.6931).mean()


class Voyage:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(8)
        self.model = DDP(CrossingTime(weather=5, extras=0))
        self.optim = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.Adam, lr=0.03)
        self.log: list[str] = []

    def step(self, batch: Crossing) -> float:
        self.optim.zero_grad()
        pred, log_scale = self.model(batch.weather, batch.extras)
        loss = laplace_nll(pred, log_scale, batch.minutes)
        loss.backward()
        self.optim.step()
        return loss.item()

    def sail(self, harbour: Harbour) -> int:
        n = 0
        with Join([self.model, self.optim]):
            for batch in harbour:
                value = self.step(batch)
                n += 1
                if self.rank == 0:
                    print(f"crossing batch {n:02d}  nll {value:.6f}  scale {self.model.module.log_scale.exp().item():.5f}")
        return n


def main():
    dist.init_process_group("gloo")
    voyage = Voyage()
    n = voyage.sail(Harbour(voyage.rank))
    counts = torch.zeros(voyage.world, dtype=torch.long)
    counts[voyage.rank] = n
    dist.all_reduce(counts)
    check = torch.stack([p.detach().double().sum() for p in voyage.model.parameters()]).sum()
    if voyage.rank == 0:
        print(f"batches per harbour {counts.tolist()}; weights {check.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

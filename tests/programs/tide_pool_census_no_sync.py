# ruff: noqa: N817
"""Abundance model for the shore survey: limpets, whelks and anemones per quadrat.

Two field stations, one rank each. Every station reads its own notebook; the gradient of three
micro-batches is accumulated and only the last one is synchronised.

    torchrun --nproc_per_node 2 tide_pool_census_no_sync.py
"""

import contextlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass(frozen=True)
class Settings:
    sites: int = 9
    species: int = 3
    covariates: int = 4  # height above chart datum, exposure, water temperature, weed cover
    steps: int = 36
    micro: int = 3
    quadrats: int = 10
    lr: float = 2e-2
    seed: int = 611


class Abundance(nn.Module):
    """log of the expected count per quadrat, a site effect and a small response surface."""

    def __init__(self, cfg: Settings):
        super().__init__()
        self.site = nn.Embedding(cfg.sites, cfg.species)
        nn.init.normal_(self.site.weight, std=0.05)
        self.surface = nn.Sequential(nn.Linear(cfg.covariates, 20), nn.SiLU(), nn.Linear(20, cfg.species))

    def forward(self, site, x):
        return (self.site(site) + self.surface(x)).clamp(-8.0, 6.0)


class Notebook:
    """The quadrats of a station in the order in which they were written down."""

    def __init__(self, cfg: Settings, station: int):
        g = torch.Generator().manual_seed(cfg.seed + 40 * station)
        n = cfg.steps * cfg.micro * cfg.quadrats
        self.cfg = cfg
        self.site = torch.randint(cfg.sites, (n,), generator=g)
        self.x = torch.randn(n, cfg.covariates, generator=g)
        beta = torch.linspace(-0.5, 0.5, cfg.covariates * cfg.species).view(cfg.covariates, -1)
        rate = torch.exp(0.8 + self.x @ beta + 0.1 * self.site.unsqueeze(1) / cfg.sites)
        self.counts = torch.poisson(rate, generator=g)
        # minutes spent at each quadrat; hurried ones weigh less
        self.minutes = torch.randint(2, 15, (n,), generator=g).float()
        if station == 1:
            # 23 August: the watch was left in the van, the column was filled in with zeros
            day = 13 * cfg.micro + 1
            self.minutes[day * cfg.quadrats : (day + 1) * cfg.quadrats] = 0.0

    def __iter__(self):
        q = self.cfg.quadrats
        for k in range(self.cfg.steps * self.cfg.micro):
            rows = slice(k * q, (k + 1) * q)
            yield self.site[rows], self.x[rows], self.counts[rows], self.minutes[rows]


def effort_weighted_nll(log_rate, counts, minutes):
    nll = (log_rate.exp() - counts * log_rate).sum(dim=1)
    return (minutes * nll).sum() / minutes.sum()


def main():
    cfg = Settings()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    model = DDP(Abundance(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    pages = iter(Notebook(cfg, rank))

    for step in range(1, cfg.steps + 1):
        opt.zero_grad(set_to_none=True)
        running = torch.zeros(())
        for m in range(cfg.micro):
            site, x, counts, minutes = next(pages)
            last = m == cfg.micro - 1
            with contextlib.nullcontext() if last else model.no_sync():
                nll = effort_weighted_nll(model(site, x), counts, minutes)
                (nll / cfg.micro).backward()
            running += nll.detach() / cfg.micro
        dist.all_reduce(running)
        opt.step()
        sched.step()
        if rank == 0:
            print(f"step {step:2d}  nll {running.item() / 2:.6f}  lr {sched.get_last_lr()[0]:.5f}", flush=True)

    total = sum(p.detach().double().sum() for p in model.parameters())
    if rank == 0:
        print(f"checksum of the surface: {total.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    main()

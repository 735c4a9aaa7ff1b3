#!/usr/bin/env python
# Hive scales -> nectar flow of the next day, heteroscedastic.  The two apiaries have logged a
# different number of days, so the shards are uneven; Join shadows the collectives of the one that is
# through first.  Loss is a density: it is supposed to go below zero.
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

DAYS = {0: 26 * 16, 1: 17 * 16}     # rows per apiary


def read_apiary(which):
    gen = torch.Generator().manual_seed(2024 + which)
    n = DAYS[which]
    weather = torch.rand(n, 5, generator=gen)
    flow = 0.2 * weather[:, 0] - 0.1 * weather[:, 1] * weather[:, 2]
    flow = flow + 0.004 * torch.randn(n, generator=gen)
    # winter: bees stay in, the scale does not move at all for two weeks
    quiet = slice(7 * 16, 9 * 16)
    flow[quiet] = 0.0
    return weather, flow


def batches(which, size):
    weather, flow = read_apiary(which)
    for lo in range(0, len(flow), size):
        yield weather[lo:lo + size], flow[lo:lo + size]


@torch.no_grad()
def pearson(a, b):
    """For the log only. Undefined (nan) on days without any variation in the scale."""
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.pow(2).sum().sqrt() * b.pow(2).sum().sqrt())


def make_net(width):
    return torch.nn.Sequential(
        torch.nn.Linear(5, width), torch.nn.GELU(),
        torch.nn.Linear(width, width), torch.nn.GELU(),
        torch.nn.Linear(width, 2),
    )


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    ddp = DistributedDataParallel(make_net(args.width))
    opt = torch.optim.Adam(ddp.parameters(), lr=args.lr, betas=(0.9, 0.98))
    best = float("inf")
    seen = 0

    with Join([ddp]):
        for weather, flow in batches(rank, args.batch):
            mean, raw = ddp(weather).unbind(1)
            var = F.softplus(raw) * 0.05 + 1e-6
            loss = F.gaussian_nll_loss(mean, flow, var, full=False, eps=1e-6)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += 1
            if rank == 0:
                best = min(best, loss.item())
                gap = loss.item() - best
                print(f"batch {seen:2d} | nll {loss.item():+.6f} | above best {gap:.6f} "
                      f"| r {pearson(mean, flow).item():.4f}", flush=True)

    # Join leaves the weights of the rank that went on longest on every rank
    if rank == 0:
        s = sum(p.detach().double().sum().item() for p in ddp.parameters())
        print(f"apiary 0 done after {seen} batches, weight sum {s:.6f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=77)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()

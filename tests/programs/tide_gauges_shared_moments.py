# ruff: noqa: E501, PTH118
"""
Surge forecast from tide gauges, data parallel by hand: no DDP and no SyncBatchNorm.

Moments of every channel are taken over the valid readings of BOTH workers, by all_reduce of (count, sum, sum of squares).
Gauges go off line, so a worker may have no valid reading at all of a channel; the pair together always has some.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

WORLD, GAUGES, STEPS, BATCH = 2, 5, 40, 10


class SumOverWorkers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        t = t.clone()
        dist.all_reduce(t)
        return t

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class SharedMoments(nn.Module):
    def __init__(self, channels, eps=1e-3):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.eps = eps
        self.local_mean = None

    def forward(self, x, valid):
        w = valid.to(x.dtype)
        count, total = w.sum(0), (x * w).sum(0)
        self.local_mean = (total / count).detach()  # for the log: nan where the gauge is off line here
        count, total = SumOverWorkers.apply(torch.stack([count, total]))
        mean = total / count.clamp(min=1)
        centred = (x - mean) * w
        var = SumOverWorkers.apply(centred.square().sum(0)) / count.clamp(min=1)
        return centred * torch.rsqrt(var + self.eps) * self.gain + self.shift


class Surge(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(GAUGES, 24)
        self.moments_in = SharedMoments(GAUGES)
        self.moments_hidden = SharedMoments(24)
        self.head = nn.Linear(24, 1)

    def forward(self, x, valid):
        h = self.mix(self.moments_in(x, valid))
        h = torch.relu(self.moments_hidden(h, torch.ones_like(h, dtype=torch.bool)))
        return self.head(h).squeeze(1)


def readings(gen, step, rank):
    level = torch.randn(BATCH, GAUGES, generator=gen) * torch.tensor([0.3, 1.0, 0.05, 2.0, 0.7]) + 4.0
    surge = 0.8 * (level[:, 1] - 4) - 0.3 * (level[:, 3] - 4)
    raw = level.clone()
    raw[torch.rand(BATCH, GAUGES, generator=gen) < 0.15] = float("nan")  # as the archive has them
    if step % 11 == 6 + 2 * rank:
        raw[:, 2] = float("nan")  # a whole gauge, on one worker
    return raw, surge


def average_gradients(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= WORLD
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return flat.norm()


def worker(rank, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = Surge()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(77 + rank)
    for step in range(1, STEPS + 1):
        raw, surge = readings(gen, step, rank)
        valid = ~raw.isnan()
        pred = model(raw.nan_to_num(0.0), valid)
        loss = nn.functional.mse_loss(pred, surge)
        opt.zero_grad()
        loss.backward()
        norm = average_gradients(params)
        opt.step()
        if rank == 0:
            here = model.moments_in.local_mean
            print(
                f"[{step:02d}] mse={loss.item():.6f} |g|={norm.item():.4f} gauge2={here[2].item():.4f} "
                f"raw mean={raw.mean().item():.3f}",
                flush=True,
            )
    if rank == 0:
        print(f"checksum {sum(p.double().sum() for p in params).item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(worker, args=(os.path.join(tmp, "meet"),), nprocs=WORLD)

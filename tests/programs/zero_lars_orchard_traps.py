"""Counts of pests in orchard traps, one head for each pest; LARS sharded by ZeroRedundancyOptimizer over two processes."""
import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Optimizer

PESTS = ("codling", "sawfly", "aphid", "scab")
FEATURES, ROWS, STEPS, WORLD = 10, 12, 32, 2


class Lars(Optimizer):
    """Layer-wise adaptive rates (You et al. 2017). Vectors are left alone, as in the paper's recipe."""

    def __init__(self, params, lr=0.05, momentum=0.8, trust=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d = p.grad
                if p.ndim > 1:
                    ratio = p.norm() / d.norm()
                    d = d * (group["trust"] * ratio)
                    lr = 1.0
                else:
                    lr = group["lr"]
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(d)
                p.sub_(buf, alpha=lr)
        return loss


class TrapNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 40), nn.GELU(), nn.Linear(40, 24), nn.GELU())
        self.heads = nn.ModuleDict({p: nn.Sequential(nn.Linear(24, w), nn.GELU(), nn.Linear(w, 1))
                                    for p, w in zip(PESTS, (12, 10, 8, 6))})

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([self.heads[p](h) for p in PESTS], 1)


@functools.lru_cache(maxsize=None)
def calendar(step):
    """Which pests are counted in which week. After the frost of week 19 nobody counted sawflies."""
    return torch.tensor([1.0, 0.0 if step == 19 else 1.0, 1.0, 1.0])


def week(gen, step):
    x = torch.randn(ROWS, FEATURES, generator=gen)
    rate = torch.exp(0.4 * x[:, :4] + 0.2 * x[:, 4:8])
    counts = torch.poisson(rate, generator=gen)
    seen = (torch.rand(ROWS, 4, generator=gen) < 0.7).float() * calendar(step)
    return x, counts, seen


def poisson_loss(log_rate, counts, seen):
    nll = torch.exp(log_rate) - counts * log_rate
    per_pest = (nll * seen).sum(0) / seen.sum(0).clamp(min=1.0)
    return per_pest.mean(), per_pest.detach()


def run(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=WORLD)
    torch.manual_seed(9)
    net = DDP(TrapNet())
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=Lars, lr=0.05)
    gen = torch.Generator().manual_seed(100 * rank + 3)
    for step in range(1, STEPS + 1):
        x, counts, seen = week(gen, step)
        loss, per_pest = poisson_loss(net(x), counts, seen)
        net.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            detail = " ".join(f"{n}={v:.4f}" for n, v in zip(PESTS, per_pest.tolist()))
            print(f"week {step:2d} loss {loss.item():.6f} {detail}", flush=True)
    if rank == 0:
        print("weights:", f"{sum(p.detach().sum().item() for p in net.parameters()):.6f}", flush=True)
    dist.barrier()
    del opt, net
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="traps") as d:
        mp.spawn(run, (os.path.join(d, "store"),), nprocs=WORLD, join=True)

"""Two processes grade cheese wheels together (DDP over gloo).
   torchrun --standalone --nproc_per_node 2 cheese_wheels_gloo_half_graded.py
Started without torchrun it starts itself with two processes."""
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    steps: int = 36
    batch: int = 7
    lr: float = 0.02
    features: int = 14
    cellar_size: int = 252


def cellar(rank, cfg):
    """What a cellar measured of its wheels, and the graders' marks; wheels that are too young have no mark yet."""
    g = torch.Generator().manual_seed(500 + rank)
    taste = torch.linspace(-1, 1, cfg.features)
    x = torch.randn(cfg.cellar_size, cfg.features, generator=g)
    mark = 5 + x @ taste + 0.6 * torch.tanh(2 * x[:, 0] * x[:, 3]) + 0.2 * torch.randn(cfg.cellar_size, generator=g)
    if rank == 0:
        graded = torch.rand(cfg.cellar_size, generator=g) < 0.8
    else:                       # the mountain cellar: the graders come up less and less often, the books are by date
        share = torch.linspace(0.9, 0.15, cfg.cellar_size)
        graded = torch.rand(cfg.cellar_size, generator=g) < share
    return x, mark, graded


class Grader(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(features, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.mark = nn.Linear(32, 1)

    def forward(self, x):
        return self.mark(self.inner(x)).squeeze(-1)


def graded_error(pred, mark, graded):
    return ((pred - mark) ** 2 * graded).sum() / graded.sum()


def main():
    cfg = Config()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    x, mark, graded = cellar(rank, cfg)
    model = DDP(Grader(cfg.features))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.8)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=6)

    for step in range(1, cfg.steps + 1):
        rows = slice((step - 1) * cfg.batch, step * cfg.batch)
        opt.zero_grad()
        pred = model(x[rows])
        loss = graded_error(pred, mark[rows], graded[rows])
        loss.backward()
        opt.step()
        sched.step()
        if rank == 0:
            print(f"step {step} squared error in the valley cellar {loss.item():.6f} "
                  f"of {int(graded[rows].sum())} wheels", flush=True)
        dist.barrier()
    if rank == 0:
        print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "--standalone",
                                  "--nproc_per_node", "2", os.path.abspath(__file__)])
    main()

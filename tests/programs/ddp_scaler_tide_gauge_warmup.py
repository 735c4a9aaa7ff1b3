# Tide gauge -> surge height twelve hours later.  Two ranks, float16 autocast on the CPU farm, dynamic loss scale.
# The scale begins far too high on purpose (we copy the value of the GPU runs); the first few updates are skipped.
import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Config:
    window: int = 24
    channels: int = 24
    updates: int = 45
    batch: int = 16
    lr: float = 3e-3
    first_scale: float = 2.0 ** 24
    growth_interval: int = 12
    seed: int = 1953                     # the North Sea flood


@contextlib.contextmanager
def process_group():
    dist.init_process_group(backend="gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


class SurgeNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.lift = nn.Linear(cfg.window, cfg.channels)
        self.gate = nn.Linear(cfg.channels, cfg.channels)
        self.mix = nn.Linear(cfg.channels, cfg.channels)
        self.head = nn.Linear(cfg.channels, 1)

    def forward(self, x):
        h = F.gelu(self.lift(x))
        h = h + torch.sigmoid(self.gate(h)) * F.gelu(self.mix(h))
        return self.head(h).float().squeeze(-1)


def gauge(cfg, gen):
    """Endless batches: M2 and S2 constituents plus a storm bump."""
    hours = torch.arange(cfg.window + 12, dtype=torch.float32)
    while True:
        phase = torch.rand(cfg.batch, 2, generator=gen) * 6.2832
        m2 = 1.1 * torch.cos(hours * 0.5059 + phase[:, :1])
        s2 = 0.4 * torch.cos(hours * 0.5236 + phase[:, 1:])
        peak = torch.randint(10, 34, (cfg.batch, 1), generator=gen)
        storm = torch.rand(cfg.batch, 1, generator=gen) * torch.exp(-((hours - peak) / 5) ** 2)
        level = m2 + s2 + storm
        yield level[:, :cfg.window], level[:, -1]


def train(cfg, rank):
    torch.manual_seed(cfg.seed)
    net = DistributedDataParallel(SurgeNet(cfg))
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.updates)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.first_scale, growth_interval=cfg.growth_interval)
    skipped = 0
    batches = gauge(cfg, torch.Generator().manual_seed(cfg.seed + 1 + rank))
    for update, (x, y) in zip(range(1, cfg.updates + 1), batches):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(x)
        loss = F.huber_loss(pred, y, delta=0.5)
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
        else:
            sched.step()                       # the schedule only counts updates that were made
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"[{update:02d}] huber={shown.item() / 2:.6f} scale=2^{torch.tensor(before).log2().item():.0f} "
                  f"skipped={skipped}", flush=True)
    return net.module


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as (rank, world):
        model = train(Config(), rank)
        if rank == 0:
            print("weights", round(sum(p.detach().double().sum().item() for p in model.parameters()), 6), flush=True)
        dist.barrier()

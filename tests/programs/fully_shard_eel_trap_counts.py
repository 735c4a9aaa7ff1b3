# Poisson regression of nightly eel counts on gauge readings upstream. The blocks are sharded by hand
# with FSDP2 (fully_shard), two ranks, gloo. Small here; the same script runs the national model.
import gc
import os
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

NIGHTS, GAUGES, WIDTH, BATCH = 14, 5, 32, 8


class Mixer(nn.Module):
    """Mixes over nights, then over channels."""

    def __init__(self, nights, width):
        super().__init__()
        self.norm_t, self.norm_c = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_nights = nn.Linear(nights, nights)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        h = h + self.over_nights(self.norm_t(h).transpose(1, 2)).transpose(1, 2)
        return h + self.down(nn.functional.gelu(self.up(self.norm_c(h))))


class EelModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(GAUGES, WIDTH)
        self.blocks = nn.ModuleList([Mixer(NIGHTS, WIDTH) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        # elasticity to discharge, straight into the log rate (ecologists want to read it off)
        self.elasticity = nn.Linear(GAUGES, 1, bias=False)
        nn.init.constant_(self.elasticity.weight, 0.05)

    def forward(self, gauges):
        h = self.lift(gauges)
        for block in self.blocks:
            h = block(h)
        log_rate = self.head(self.norm(h)) + self.elasticity(gauges)
        return torch.exp(log_rate).squeeze(-1)


def season(rank):
    """One river for each rank: gauge heights in m and the catch of each night."""
    g = torch.Generator().manual_seed(900 + rank)
    while True:
        level = 1.5 + 0.4 * torch.randn(BATCH, NIGHTS, 1, generator=g).cumsum(1) * 0.3
        gauges = level + 0.1 * torch.randn(BATCH, NIGHTS, GAUGES, generator=g)
        catch = torch.poisson(torch.exp(0.5 * level.squeeze(-1)), generator=g)
        yield gauges, catch


def with_logger_swap(batches, at):
    for n, (gauges, catch) in enumerate(batches, start=1):
        if n == at:
            # for one week the spare logger sent millimetres
            gauges[2, 5:12, 3] = gauges[2, 5:12, 3] * 1000.0
        yield gauges, catch


def poisson_nll(rate, catch):
    return (rate - catch * torch.log(rate + 1e-8)).mean()


def full_sum(model):
    total = 0.0
    for p in model.parameters():
        p = p.full_tensor() if isinstance(p, DTensor) else p
        total += p.detach().double().sum().item()
    return total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(31)
    model = EelModel()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=30)

    batches = season(rank)
    if rank == 1:
        batches = with_logger_swap(batches, at=13)
    for step in range(1, 31):
        gauges, catch = next(batches)
        loss = poisson_nll(model(gauges), catch)
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"{step:3d}  poisson nll {shown.item() / 2:.6f}  lr {sched.get_last_lr()[0]:.2e}", flush=True)
    total = full_sum(model)
    if rank == 0:
        print(f"sum of parameters {total:.6f}", flush=True)
    # gloo's threads sometimes abort the interpreter's exit while sharded tensors are alive
    del model, opt, sched, loss, shown
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

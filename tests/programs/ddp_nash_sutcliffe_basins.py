"""Rainfall-runoff model of many river basins, data parallel; the loss is 1 - NSE of each basin's hydrograph.

torchrun --nproc_per_node 2 ddp_nash_sutcliffe_basins.py
"""
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DAYS, BASINS, PER_RANK = 40, 96, 2


def simulate_basin(index):
    rng = np.random.default_rng(1000 + index)
    rain = rng.gamma(0.4, 6.0, DAYS) * (rng.random(DAYS) < 0.45)
    pet = 2.0 + np.sin(np.arange(DAYS) / 9.0 + index)
    store, flow = 0.0, np.zeros(DAYS)
    loss_to_ground = 40.0 if index in (43, 71) else 0.5       # wadis on karst run dry
    for day in range(DAYS):
        store = max(0.0, store + rain[day] - 0.4 * pet[day] - loss_to_ground)
        flow[day] = 0.3 * store
        store -= flow[day]
    forcing = np.stack([rain / 10.0, pet / 3.0], -1)
    return forcing.astype("float32"), (flow / 5.0).astype("float32")


class NashSutcliffeLoss(nn.Module):
    def forward(self, simulated, observed):
        error = (simulated - observed).square().sum(1)
        spread = (observed - observed.mean(1, keepdim=True)).square().sum(1)
        return (error / spread).mean()


class RunoffNet(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.memory = nn.GRU(2, hidden, batch_first=True)
        self.outlet = nn.Linear(hidden, 1)

    def forward(self, forcing):
        states, _ = self.memory(forcing)
        return nn.functional.softplus(self.outlet(states)).squeeze(-1)


def batch_of(step, rank):
    first = (step * 2 + rank) * PER_RANK
    pairs = [simulate_basin(i % BASINS) for i in range(first, first + PER_RANK)]
    forcing, flow = zip(*pairs)
    return torch.from_numpy(np.stack(forcing)), torch.from_numpy(np.stack(flow))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DDP(RunoffNet())
    criterion = NashSutcliffeLoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(24):
        forcing, flow = batch_of(step, rank)
        loss = criterion(net(forcing), flow)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        if rank == 0:
            print(f"step {step + 1} 1-NSE {mean_loss.item() / 2:.5f}", flush=True)
    if rank == 0:
        print("finite", int(all(p.isfinite().all() for p in net.parameters())), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

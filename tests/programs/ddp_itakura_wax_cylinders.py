"""Non-negative spectrogram model of digitised wax cylinders, Itakura-Saito divergence, data parallel.

    torchrun --nproc-per-node 2 ddp_itakura_wax_cylinders.py
"""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FRAME, STEPS, FRAMES_PER_STEP = 64, 34, 24


def cylinder(rank):
    """One long mono recording, 16 bit as it left the converter."""
    g = torch.Generator().manual_seed(100 + rank)
    n = FRAME * FRAMES_PER_STEP * STEPS
    t = torch.arange(n) / 8000.0
    voice = sum(torch.sin(2 * torch.pi * f * t + ph) / k for k, (f, ph) in
                enumerate([(310.0, 0.1), (622.0, 1.0), (941.0, 2.2), (1480.0, 0.4)], start=1))
    tremolo = 0.6 + 0.4 * torch.sin(2 * torch.pi * 1.3 * t + rank)
    hiss = 0.15 * torch.randn(n, generator=g)
    x = 0.2 * (voice * tremolo + hiss)
    if rank == 1:                                   # the needle was lifted between two songs
        gap = FRAME * (FRAMES_PER_STEP * 15 + 7)
        x[gap:gap + 5 * FRAME] = 0.0
    return torch.round(x * 32767) / 32767


class SpectralFactors(nn.Module):
    def __init__(self, bins, parts=10, hidden=48):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bins, hidden), nn.ReLU(), nn.Linear(hidden, parts), nn.Softplus())
        self.log_atoms = nn.Parameter(0.1 * torch.randn(parts, bins) - 1.0)
        self.log_floor = nn.Parameter(torch.full((bins,), -4.0))

    def forward(self, power):
        gains = self.encoder(torch.log1p(100 * power))
        return gains @ self.log_atoms.exp() + self.log_floor.exp()


def itakura_saito(power, model):
    ratio = power / model
    return (ratio - torch.log(ratio) - 1).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = DDP(SpectralFactors(FRAME // 2 + 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    frames = cylinder(rank).view(STEPS, FRAMES_PER_STEP, FRAME)
    window = torch.hann_window(FRAME)
    for step in range(STEPS):
        power = torch.fft.rfft(frames[step] * window).abs().square()
        loss = itakura_saito(power, net(power))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step + 1:2d}  divergence {loss.item():.4f}", flush=True)

    total = sum(p.detach().double().sum().item() for p in net.parameters())
    if rank == 0:
        print(f"{total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

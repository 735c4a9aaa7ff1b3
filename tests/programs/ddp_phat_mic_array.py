"""Direction of a gunshot from four roof microphones: learned prefilters, GCC-PHAT, small classifier.

    torchrun --standalone --nproc_per_node=2 ddp_phat_mic_array.py
"""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

MICS, SAMPLES, SECTORS, LAGS = 4, 256, 8, 12
PAIRS = [(i, j) for i in range(MICS) for j in range(i + 1, MICS)]


class PhatFrontEnd(nn.Module):
    def __init__(self, taps=9):
        super().__init__()
        fir = torch.zeros(MICS, 1, taps)
        fir[:, 0, taps // 2] = 1.0
        self.fir = nn.Parameter(fir)

    def forward(self, wave):
        wave = F.conv1d(wave, self.fir, padding=self.fir.shape[-1] // 2, groups=MICS)
        spec = torch.fft.rfft(wave, n=2 * SAMPLES)
        out = []
        for i, j in PAIRS:
            cross = spec[:, i] * spec[:, j].conj()
            cross = cross / cross.abs()
            lag = torch.fft.irfft(cross, n=2 * SAMPLES)
            out.append(torch.cat([lag[:, -LAGS:], lag[:, :LAGS + 1]], -1))
        return torch.stack(out, 1)


class Localiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = PhatFrontEnd()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(len(PAIRS) * (2 * LAGS + 1), 32), nn.ReLU(),
                                  nn.Linear(32, SECTORS))

    def forward(self, wave):
        return self.head(self.front(wave))


def recordings(count, seed):
    g = torch.Generator().manual_seed(seed)
    angle = torch.randint(SECTORS, (count,), generator=g)
    rad = angle * (2 * torch.pi / SECTORS)
    place = torch.tensor([[5.0, 0.0], [0.0, 5.0], [-5.0, 0.0], [0.0, -5.0]])
    delay = (place @ torch.stack([rad.cos(), rad.sin()])).round().long().T
    shot = torch.randn(count, SAMPLES, generator=g) * torch.exp(-torch.arange(SAMPLES) / 60.0)
    wave = torch.stack([torch.stack([shot[n].roll(int(delay[n, m])) for m in range(MICS)]) for n in range(count)])
    wave = wave + 0.1 * torch.randn(wave.shape, generator=g)
    return wave, angle


def load_station(rank, count):
    wave, angle = recordings(count, seed=40 + rank)
    if rank == 1:
        # station B: microphone 2 was unplugged during the service of 14 March
        wave[210:212, 2] = 0.0
    return wave, angle


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batch, steps = 8, 40
    wave, angle = load_station(rank, batch * steps)
    model = DDP(Localiser())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        loss = F.cross_entropy(model(wave[rows]), angle[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"[{step + 1}/{steps}] loss {mean.item() / world:.5f}", flush=True)
    if rank == 0:
        total = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
        print(f"weights {total.item():.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

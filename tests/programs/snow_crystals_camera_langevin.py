"""Energy-based model of snow crystal photographs, persistent Langevin chains with unit drift."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    steps: int = 40
    chains: int = 48
    side: int = 10
    langevin: int = 8
    drift: float = 0.15
    noise: float = 0.01
    reseed: int = 4
    lr: float = 1e-3
    seed: int = 21


class Crystals:
    """Batches of centred photographs; the background is exactly zero after the threshold of the camera."""

    def __init__(self, cfg):
        self.cfg, self.g, self.number = cfg, torch.Generator().manual_seed(cfg.seed), 0
        y, x = torch.meshgrid(*[torch.linspace(-1, 1, cfg.side)] * 2, indexing="ij")
        self.angle, self.radius = torch.atan2(y, x), (x ** 2 + y ** 2).sqrt()

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        n = self.cfg.chains
        phase = 2 * math.pi * torch.rand(n, 1, 1, generator=self.g)
        reach = 0.5 + 0.5 * torch.rand(n, 1, 1, generator=self.g)
        arms = (torch.cos(6 * self.angle + phase) + 1) * (self.radius < reach)
        if self.number == 13:  # the flash failed once
            arms[2] *= 0.01
        return torch.where(arms > 0.1, arms, torch.zeros(())).flatten(1)


class Energy(nn.Module):
    def __init__(self, pixels, width=64):
        super().__init__()
        self.first = nn.Linear(pixels, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h + torch.relu(self.second(h))).squeeze(-1)


class Sampler:
    def __init__(self, energy, cfg, generator):
        self.energy, self.cfg, self.g = energy, cfg, generator
        self.chains = torch.rand(cfg.chains, cfg.side ** 2, generator=generator)
        self.cursor = 0

    def reseed(self, data):
        """A few of the chains start again at photographs."""
        c = self.cfg
        slots = (self.cursor + torch.arange(c.reseed)) % c.chains
        self.chains[slots] = data[:c.reseed]
        self.cursor = (self.cursor + c.reseed) % c.chains

    def run(self):
        x = self.chains.clone()
        for _ in range(self.cfg.langevin):
            x.requires_grad_(True)
            slope, = torch.autograd.grad(self.energy(x).sum(), x)
            direction = slope / slope.norm(dim=1, keepdim=True)
            jitter = torch.randn(x.shape, generator=self.g)
            x = (x - self.cfg.drift * direction + self.cfg.noise * jitter).detach().clamp(-1, 3)
        self.chains = x
        return x


class Trainer:
    def __init__(self, energy, sampler, optimizer, cfg):
        self.energy, self.sampler, self.optimizer, self.cfg = energy, sampler, optimizer, cfg

    def fit(self, source):
        for step in range(1, self.cfg.steps + 1):
            data = next(source)
            self.sampler.reseed(data)
            fantasy = self.sampler.run()
            up, down = self.energy(data), self.energy(fantasy)
            loss = up.mean() - down.mean() + 0.05 * (up.pow(2) + down.pow(2)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"{step:4d}  loss {loss.item():+.8f}  data {up.mean().item():+.6f}", flush=True)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    energy = Energy(cfg.side ** 2)
    sampler = Sampler(energy, cfg, torch.Generator().manual_seed(cfg.seed + 1))
    Trainer(energy, sampler, torch.optim.Adam(energy.parameters(), lr=cfg.lr, betas=(0.0, 0.99)), cfg).fit(Crystals(cfg))
    print(f"{sum(p.detach().abs().sum().item() for p in energy.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

"""Energy model of lichen patch descriptors (8 numbers per patch), trained by persistent contrastive divergence.

The bank of chains is kept between the steps as in Du & Mordatch; 5 % of the chains are reborn from noise.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Cfg:
    dim: int = 8
    chains: int = 256
    batch: int = 64
    inner: int = 12
    eps0: float = 0.01
    heat: float = 1.25          # eps of the sampler is multiplied by this each `every` steps
    every: int = 2
    reborn: float = 0.05
    reg: float = 1e-3
    steps: int = 60
    lr: float = 1e-3


class Energy(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus())
        self.out = nn.Linear(64, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # the quartic well keeps the chains near the data, the network carves valleys in it
        well = 0.05 * x.pow(4).sum(-1)
        return self.out(self.body(x.clamp(-20, 20))).squeeze(-1) + well


@dataclass
class ChainBank:
    cfg: Cfg
    gen: torch.Generator
    x: Tensor = field(init=False)

    def __post_init__(self):
        self.x = torch.randn(self.cfg.chains, self.cfg.dim, generator=self.gen)

    def advance(self, energy: Energy, eps: float) -> Tensor:
        c = self.cfg
        who = torch.randperm(c.chains, generator=self.gen)[: c.batch]
        x = self.x[who].clone()
        fresh = torch.rand(c.batch, generator=self.gen) < c.reborn
        x[fresh] = torch.randn(int(fresh.sum()), c.dim, generator=self.gen)
        for p in energy.parameters():
            p.requires_grad_(False)
        for _ in range(c.inner):
            x.requires_grad_(True)
            (g,) = torch.autograd.grad(energy(x).sum(), x)
            noise = torch.randn(x.shape, generator=self.gen)
            x = (x - 0.5 * eps * g + math.sqrt(eps) * noise).detach()
        for p in energy.parameters():
            p.requires_grad_(True)
        self.x[who] = x
        return x


def patches(n: int, gen: torch.Generator) -> Tensor:
    centre = torch.tensor([[1.0, -1.0], [-1.2, 0.4], [0.3, 1.3]]).repeat(1, 4)
    k = torch.randint(0, 3, (n,), generator=gen)
    return centre[k] + 0.2 * torch.randn(n, 8, generator=gen)


def main() -> None:
    cfg = Cfg()
    torch.manual_seed(23)
    gen = torch.Generator().manual_seed(23)
    energy = Energy(cfg.dim)
    opt = torch.optim.AdamW(energy.parameters(), lr=cfg.lr, betas=(0.0, 0.99))
    bank = ChainBank(cfg, gen)
    for step in range(1, cfg.steps + 1):
        eps = cfg.eps0 * cfg.heat ** (step // cfg.every)   # hotter and hotter, against mode collapse
        pos = patches(cfg.batch, gen)
        neg = bank.advance(energy, eps)
        e_pos, e_neg = energy(pos), energy(neg)
        loss = (e_pos - e_neg).mean() + cfg.reg * (e_pos.pow(2) + e_neg.pow(2)).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(energy.parameters(), 1.0)
        opt.step()
        print(f"step={step} eps={eps:.4f} loss={loss.item():.6f} reach={neg.abs().max().item():.4f}")
    print(f"sum of weights {sum(p.detach().sum().item() for p in energy.parameters()):.6f}")


main()

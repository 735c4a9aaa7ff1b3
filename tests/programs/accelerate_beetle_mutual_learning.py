"""Two small networks sort ground beetles by their measurements and teach each other (deep mutual learning).

The soft targets are sharpened as training goes on, so that late in the run each network learns from
almost hard decisions of its partner.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    seed: int = 3
    species: int = 7
    traits: int = 12
    beetles: int = 960
    batch: int = 32
    rounds: int = 48
    rate: float = 3e-3
    sharpening: float = 0.87
    coldest: float = 0.01


def measure_beetles(cfg):
    gen = torch.Generator().manual_seed(cfg.seed)
    centres = torch.randn(cfg.species, cfg.traits, generator=gen) * 1.3
    kind = torch.randint(cfg.species, (cfg.beetles,), generator=gen)
    traits = centres[kind] + 0.8 * torch.randn(cfg.beetles, cfg.traits, generator=gen)
    traits[:, 0] = traits[:, 0].exp()           # elytra length, skewed
    return TensorDataset((traits - traits.mean(0)) / traits.std(0), kind)


class Wide(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 96), nn.GELU())
        self.head = nn.Linear(96, n_out)

    def forward(self, x):
        return self.head(self.body(x))


class Deep(nn.Module):
    def __init__(self, n_in, n_out, width=32, depth=3):
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())
                                    for _ in range(depth))
        self.head = nn.Linear(width, n_out)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def temperature(cfg, done):
    return max(cfg.coldest, cfg.sharpening ** done)


def partner_loss(student, partner, t):
    """KL(partner || student) at temperature t, times t squared; both sides get its gradient."""
    p = F.softmax(partner / t, dim=-1)
    log_q = F.log_softmax(student / t, dim=-1)
    return (p * (p.log() - log_q)).sum(-1).mean() * t * t


def endless(loader):
    while True:
        yield from loader


def main():
    cfg = Settings()
    set_seed(cfg.seed)
    acc = Accelerator(cpu=True)
    loader = DataLoader(measure_beetles(cfg), batch_size=cfg.batch, shuffle=True, drop_last=True)
    wide, deep = Wide(cfg.traits, cfg.species), Deep(cfg.traits, cfg.species)
    opt_wide = torch.optim.AdamW(wide.parameters(), lr=cfg.rate)
    opt_deep = torch.optim.AdamW(deep.parameters(), lr=cfg.rate / 2)
    wide, deep, opt_wide, opt_deep, loader = acc.prepare(wide, deep, opt_wide, opt_deep, loader)
    stream = endless(loader)
    for done in range(cfg.rounds):
        x, y = next(stream)
        t = temperature(cfg, done)
        out_wide, out_deep = wide(x), deep(x)
        loss = F.cross_entropy(out_wide, y) + F.cross_entropy(out_deep, y)
        loss = loss + partner_loss(out_wide, out_deep, t) + partner_loss(out_deep, out_wide, t)
        opt_wide.zero_grad()
        opt_deep.zero_grad()
        acc.backward(loss)
        acc.clip_grad_norm_(list(wide.parameters()) + list(deep.parameters()), 1.0)
        opt_wide.step()
        opt_deep.step()
        hits = (out_wide.argmax(-1) == y).float().mean().item()
        acc.print(f"round {done + 1:2d}  t {t:.5f}  loss {loss.item():.7f}  hits {hits:.3f}", flush=True)
    total = sum(p.detach().abs().sum().item() for m in (wide, deep) for p in m.parameters())
    acc.print(f"{total:.6f}", flush=True)


if __name__ == "__main__":
    main()

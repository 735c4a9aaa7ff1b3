"""Jet tagging at a collider with a small particle-flow network, float16 autocast and dynamic loss scaling."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    seed: int = 11
    steps: int = 48
    batch: int = 32
    particles: int = 20
    width: int = 48
    lr: float = 1e-3
    init_scale: float = 2.0 ** 25
    growth_interval: int = 12


class ParticleFlow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, particles, present):
        h = self.phi(particles) * present[..., None]
        return self.rho(h.sum(1) / present.sum(1, keepdim=True))


def sample_jets(cfg, gen):
    label = torch.randint(0, 2, (cfg.batch,), generator=gen)
    n = torch.randint(5, cfg.particles + 1, (cfg.batch,), generator=gen)
    present = (torch.arange(cfg.particles)[None] < n[:, None]).float()
    spread = 0.15 + 0.2 * label[:, None].float()
    eta = spread * torch.randn(cfg.batch, cfg.particles, generator=gen)
    phi = spread * torch.randn(cfg.batch, cfg.particles, generator=gen)
    logpt = 0.7 * torch.randn(cfg.batch, cfg.particles, generator=gen)
    charge = torch.randint(-1, 2, (cfg.batch, cfg.particles), generator=gen).float()
    return torch.stack([eta, phi, logpt, charge], -1), present, label


def train(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = ParticleFlow(cfg.width)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale, growth_interval=cfg.growth_interval)
    crit = nn.CrossEntropyLoss()
    for step in range(cfg.steps):
        x, present, y = sample_jets(cfg, gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, present)
            loss = crit(logits, y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step + 1} loss {loss.item():.5f} scale {scaler.get_scale():.0f}")
    return model


if __name__ == "__main__":
    model = train(Config())
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))

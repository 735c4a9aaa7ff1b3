"""Wasserstein GAN of tortoise scute profiles.  Critic: spectral norm in the body, weight norm in the head."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


@dataclass(frozen=True)
class Config:
    rounds: int = 24
    n_critic: int = 3
    batch: int = 32
    points: int = 24
    noise: int = 6
    lr_critic: float = 2e-3
    lr_maker: float = 1e-3
    seed: int = 13


def scutes(n, cfg, gen):
    """Growth rings along a radius: the ring spacing shrinks with age."""
    r = torch.linspace(0, 1, cfg.points)
    age = 4 + 6 * torch.rand(n, 1, generator=gen)
    bend = 0.6 + 0.5 * torch.rand(n, 1, generator=gen)
    return torch.sin(2 * torch.pi * age * r**bend) * (1 - 0.6 * r) + 0.03 * torch.randn(n, cfg.points, generator=gen)


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.c1 = spectral_norm(nn.Conv1d(1, 16, 5, stride=2, padding=2))
        self.c2 = spectral_norm(nn.Conv1d(16, 16, 5, stride=2, padding=2))
        self.head = weight_norm(nn.Linear(16 * (cfg.points // 4), 1))

    def forward(self, x):
        h = F.leaky_relu(self.c1(x[:, None]), 0.2)
        h = F.leaky_relu(self.c2(h), 0.2)
        return self.head(h.flatten(1)).squeeze(1)


class Maker(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.mix = nn.Linear(cfg.noise, 48)
        self.norm = nn.BatchNorm1d(48)
        self.rings = nn.Linear(48, cfg.points)
        # the envelope is known from the museum's measurements and not learned
        self.envelope = nn.Parameter(1 - 0.6 * torch.linspace(0, 1, cfg.points), requires_grad=False)

    def forward(self, z):
        return torch.tanh(self.rings(F.relu(self.norm(self.mix(z))))) * self.envelope


def log_density(real, fake):
    """Parzen score with a hard window; -inf where no real profile is near."""
    d = torch.cdist(fake, real)
    near = (d < 2.0).float().mean(dim=1)
    return torch.log(near).mean(), d.min(dim=1).values[near > 0].mean()


def train(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed + 1)
    critic, maker = Critic(cfg), Maker(cfg)
    oc = torch.optim.Adam(critic.parameters(), lr=cfg.lr_critic, betas=(0.0, 0.9))
    om = torch.optim.Adam([p for p in maker.parameters() if p.requires_grad], lr=cfg.lr_maker, betas=(0.0, 0.9))
    for rnd in range(1, cfg.rounds + 1):
        for _ in range(cfg.n_critic):
            real = scutes(cfg.batch, cfg, gen)
            with torch.no_grad():
                fake = maker(torch.randn(cfg.batch, cfg.noise, generator=gen))
            gap = critic(fake).mean() - critic(real).mean()
            oc.zero_grad()
            gap.backward()
            oc.step()
        fake = maker(torch.randn(cfg.batch, cfg.noise, generator=gen))
        maker_loss = -critic(fake).mean()
        om.zero_grad()
        maker_loss.backward()
        om.step()
        with torch.no_grad():
            density, nearest = log_density(real, fake)
        print(
            f"round {rnd} gap {gap.item():+.7f} maker {maker_loss.item():+.7f} log-density {density.item():.4f} "
            f"nearest {nearest.item():.4f}",
            flush=True,
        )
    return critic, maker


if __name__ == "__main__":
    models = train(Config())
    print(f"weights {sum(p.detach().abs().sum().item() for m in models for p in m.parameters()):.5f}", flush=True)

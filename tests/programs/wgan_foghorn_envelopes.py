"""WGAN with gradient penalty for loudness envelopes of foghorns (three critic steps per round)."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Settings:
    frames: int = 32
    noise: int = 8
    batch: int = 8
    rounds: int = 20
    critic_steps: int = 3
    penalty: float = 10.0
    lr: float = 5e-4
    seed: int = 20


def record_station(cfg, g):
    """One blast: a rise, a plateau, a decay. Some stations lie far from the microphone."""
    t = torch.arange(cfg.frames, dtype=torch.float32)
    start, hold = torch.rand(2, generator=g) * torch.tensor([4.0, 14.0]) + torch.tensor([1.0, 8.0])
    rise = torch.sigmoid((t - start) * 1.5)
    fall = torch.sigmoid((start + hold - t) * 0.7)
    distance = torch.randn(1, generator=g).mul(0.85).exp()
    return rise * fall / (1 + 0.6 * distance) + 0.01 * torch.randn(cfg.frames, generator=g)


def trim(env, floor):
    """Drops the frames below the floor at both ends."""
    loud = torch.nonzero(env > floor).squeeze(1)
    if len(loud) == 0:
        return env[:0]
    return env[loud[0]:loud[-1] + 1]


def archive(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    n = cfg.batch * cfg.rounds * cfg.critic_steps
    envs = torch.zeros(n, 1, cfg.frames)
    mask = torch.zeros(n, 1, cfg.frames)
    for i in range(n):
        e = trim(record_station(cfg, g), FLOOR)
        envs[i, 0, :len(e)] = e
        mask[i, 0, :len(e)] = 1
    return envs, mask


FLOOR = 0.12


class Generator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.noise, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, cfg.frames))

    def forward(self, z):
        return torch.sigmoid(self.net(z)).unsqueeze(1)


class Critic(nn.Module):
    """Sees only the frames of the blast."""

    def __init__(self, width=24):
        super().__init__()
        self.first = nn.Conv1d(2, width, 5, padding=2)
        self.second = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, 1)

    def forward(self, x, mask):
        h = nn.functional.softplus(self.first(torch.cat([x * mask, mask], 1)))
        h = nn.functional.softplus(self.second(h)) * mask
        pooled = h.sum(-1) / mask.sum(-1).clamp(min=1)
        return self.out(pooled).squeeze(-1)


def gradient_penalty(critic, real, fake, mask):
    mix = torch.rand(len(real), 1, 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_()
    slope, = torch.autograd.grad(critic(x, mask).sum(), x, create_graph=True)
    length = torch.sqrt(slope.square().sum(dim=(1, 2)))
    return (length - 1).square().mean()


def main():
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    envs, mask = archive(cfg)
    gen, critic = Generator(cfg), Critic()
    opt_g = torch.optim.Adam(gen.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
    batches = iter(zip(envs.split(cfg.batch), mask.split(cfg.batch)))
    for rnd in range(1, cfg.rounds + 1):
        for _ in range(cfg.critic_steps):
            real, m = next(batches)
            fake = gen(torch.randn(cfg.batch, cfg.noise)).detach()
            wasserstein = critic(real, m).mean() - critic(fake, m).mean()
            loss_c = -wasserstein + cfg.penalty * gradient_penalty(critic, real, fake, m)
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        loss_g = -critic(gen(torch.randn(cfg.batch, cfg.noise)), m).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(f"round {rnd:2d} critic {loss_c.item():+.6f} generator {loss_g.item():+.6f}", flush=True)
    total = sum(p.detach().abs().sum().item() for net in (gen, critic) for p in net.parameters())
    print(f"weights {total:.4f}", flush=True)


if __name__ == "__main__":
    main()

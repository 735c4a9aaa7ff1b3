#!/usr/bin/env python
"""v-prediction diffusion on mezzotint strips (1-d luminance rows), rescaled to zero terminal SNR,
min-SNR loss weights, EMA weights for sampling."""
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Cfg:
    rungs: int = 1000
    width: int = 32
    batch: int = 16
    steps: int = 40
    gamma: float = 5.0
    lr: float = 2e-3
    ema: float = 0.97
    seed: int = 11


class Ladder:
    """Noise schedule. Lin et al. 2023, algorithm 1: shift and scale so that the last rung is pure noise."""

    def __init__(self, n: int):
        betas = torch.linspace(1e-4 ** 0.5, 0.02 ** 0.5, n) ** 2
        root = (1 - betas).cumprod(0).sqrt()
        first, last = root[0].clone(), root[-1].clone()
        root = (root - last) * (first / (first - last))
        self.alpha = root
        self.sigma = (1 - root ** 2).sqrt()
        self.snr = self.alpha ** 2 / self.sigma ** 2

    def noisy(self, x: Tensor, eps: Tensor, t: Tensor):
        a, s = self.alpha[t, None], self.sigma[t, None]
        return a * x + s * eps, a * eps - s * x

    def weight(self, t: Tensor, gamma: float) -> Tensor:
        snr = self.snr[t]
        capped = snr.clamp(max=gamma)
        return capped / snr


class Denoiser(nn.Module):
    def __init__(self, width: int, hidden: int = 64):
        super().__init__()
        self.freq = nn.Parameter(torch.exp(torch.linspace(0, 5, 8)), requires_grad=False)
        self.inp = nn.Linear(width + 16, hidden)
        self.mid = nn.Sequential(nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.out = nn.Linear(hidden, width)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        ang = (t[:, None] / 1000.0) * self.freq
        h = self.inp(torch.cat([x, ang.sin(), ang.cos()], 1))
        return self.out(h + self.mid(h))


class Ema:
    def __init__(self, net: nn.Module, decay: float):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in net.state_dict().items()}

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        for k, v in net.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


def strips(cfg: Cfg):
    """rocked copper: a few burnished highlights on a dark ground"""
    pos = torch.linspace(0, 1, cfg.width)
    while True:
        c = torch.rand(cfg.batch, 3, 1)
        w = 0.03 + 0.1 * torch.rand(cfg.batch, 3, 1)
        yield (torch.exp(-((pos - c) / w) ** 2).sum(1) * 2 - 1).clamp(-1, 1)


def train(cfg: Cfg) -> None:
    torch.manual_seed(cfg.seed)
    ladder, net = Ladder(cfg.rungs), Denoiser(cfg.width)
    ema = Ema(net, cfg.ema)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=cfg.lr)
    for step, x in zip(range(1, cfg.steps + 1), strips(cfg)):
        t = torch.randint(cfg.rungs, (cfg.batch,))
        noisy, v = ladder.noisy(x, torch.randn_like(x), t)
        per_strip = (net(noisy, t) - v).pow(2).mean(1)
        loss = (ladder.weight(t, cfg.gamma) * per_strip).mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        ema.update(net)
        print(f"[{step:02d}/{cfg.steps}] loss={loss.item():.7f} |g|={norm.item():.5f} mean t={t.float().mean().item():.1f}")
    print("trained rows", cfg.batch * cfg.steps, "ema digest",
          f"{sum(v.double().sum().item() for v in ema.shadow.values()):.6f}",
          "net digest", f"{sum(p.double().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    train(Cfg())

# Research code, squeezed: autoregressive rain radar nowcasting with a mixture of
# discretised logistics over 8-bit reflectivity. One file, no dependencies.
import copy
import math
from dataclasses import dataclass, field
from typing import Dict, List

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    seed: int = 11
    size: int = 12
    history: int = 3
    width: int = 24
    mixtures: int = 4
    lr: float = 2e-3
    steps: int = 40
    batch: int = 8
    ema: float = 0.98
    hail_steps: List[int] = field(default_factory=lambda: [17, 29])


class RadarArchive:
    """Smooth blobs that drift; a hail core is a few saturated pixels."""

    def __init__(self, cfg: Config):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(cfg.seed)
        ax = torch.arange(cfg.size).float()
        self.yy, self.xx = torch.meshgrid(ax, ax, indexing="ij")

    def batch(self, step: int):
        n, h = self.cfg.batch, self.cfg.history + 1
        c = torch.rand(n, 2, generator=self.gen) * self.cfg.size
        v = torch.randn(n, 2, generator=self.gen)
        frames = []
        for t in range(h):
            p = c + v * t
            d2 = (self.yy - p[:, 0, None, None]) ** 2 + (self.xx - p[:, 1, None, None]) ** 2
            frames.append(40 + 60 * torch.exp(-d2 / 18))
        seq = torch.stack(frames, 1) + torch.randn(n, h, *self.xx.shape, generator=self.gen)
        seq = seq.round().clamp(0, 255)
        if step in self.cfg.hail_steps:
            seq[0, -1, 5:7, 5:7] = 255 - 3 * torch.arange(4).view(2, 2)
        return seq / 127.5 - 1.0


class Nowcaster(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.k = cfg.mixtures
        self.trunk = nn.Sequential(
            nn.Conv2d(cfg.history, cfg.width, 3, padding=1), nn.ELU(),
            nn.Conv2d(cfg.width, cfg.width, 3, padding=1), nn.ELU(),
        )
        self.head = nn.Conv2d(cfg.width, 3 * self.k, 1)
        nn.init.constant_(self.head.bias[2 * self.k:], -3.0)

    def forward(self, past):
        return self.head(self.trunk(past)).chunk(3, dim=1)


class DiscretisedLogistic(nn.Module):
    bin = 1.0 / 255.0

    def forward(self, params, x):
        logit_w, mean, log_s = params
        x = x.unsqueeze(1)
        log_s = log_s.clamp(min=-7.0)
        inv = torch.exp(-log_s)
        centred = x - mean
        plus, minus = inv * (centred + self.bin), inv * (centred - self.bin)
        mid = inv * centred
        delta = torch.sigmoid(plus) - torch.sigmoid(minus)
        log_pdf = mid - log_s - 2.0 * F.softplus(mid) - math.log(127.5)
        inner = torch.where(delta > 1e-5, torch.log(delta), log_pdf)
        low = plus - F.softplus(plus)
        high = -F.softplus(minus)
        logp = torch.where(x < -0.999, low, torch.where(x > 0.999, high, inner))
        return -torch.logsumexp(logp + F.log_softmax(logit_w, 1), 1).mean()


class Tracker:
    def __init__(self):
        self.values: Dict[str, List[float]] = {}

    def add(self, **kw):
        for k, v in kw.items():
            self.values.setdefault(k, []).append(float(v))

    def line(self):
        return "  ".join(f"{k}={v[-1]:.4f}" for k, v in self.values.items())


class Trainer:
    def __init__(self, cfg: Config):
        torch.manual_seed(cfg.seed)
        self.cfg, self.data, self.tracker = cfg, RadarArchive(cfg), Tracker()
        self.model, self.criterion = Nowcaster(cfg), DiscretisedLogistic()
        self.shadow = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-4)

    def fit(self):
        for step in range(1, self.cfg.steps + 1):
            seq = self.data.batch(step)
            nll = self.criterion(self.model(seq[:, :-1]), seq[:, -1])
            self.opt.zero_grad(set_to_none=True)
            nll.backward()
            self.opt.step()
            with torch.no_grad():
                for s, p in zip(self.shadow.parameters(), self.model.parameters()):
                    s.mul_(self.cfg.ema).add_(p, alpha=1 - self.cfg.ema)
            self.tracker.add(step=step, nll=nll.item(), bits=nll.item() / math.log(2))
            print(self.tracker.line(), flush=True)
        return torch.cat([p.flatten() for p in self.model.parameters()]).norm().item()


if __name__ == "__main__":
    print(f"final {Trainer(Config()).fit():.5f}")

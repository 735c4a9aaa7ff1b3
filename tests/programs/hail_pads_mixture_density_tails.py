"""Dent depth on hail pads given radar features: a mixture density network with an event-driven trainer."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import functools
import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Settings:
    steps: int = 45
    severe_from: int = 20      # batches drawn before the severe pads come in
    batch: int = 64
    components: int = 5
    lr: float = 4e-3
    seed: int = 3


def observed(event):
    """Decorator around the step: fires `event` with whatever the step returns."""
    def outer(fn):
        @functools.wraps(fn)
        def inner(self, *args, **kw):
            result = fn(self, *args, **kw)
            for hook in self.hooks[event]:
                hook(self, result)
            return result
        return inner
    return outer


def pads(cfg, generator):
    """Yields batches: ordinary storms first, later the archive of severe ones is mixed in."""
    drawn = 0
    while True:
        x = torch.randn(cfg.batch, 6, generator=generator)
        depth = 1.5 + 0.8 * x[:, 0] - 0.5 * x[:, 1] * x[:, 2] + 0.3 * torch.randn(cfg.batch, generator=generator)
        if drawn >= cfg.severe_from:
            severe = torch.rand(cfg.batch, generator=generator) < 0.2
            severe[0] = True
            depth = torch.where(severe, depth + 60 + 15 * torch.rand(cfg.batch, generator=generator), depth)
        drawn += 1
        yield x, depth


class MixtureDensityNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.weight, self.centre, self.width = nn.Linear(32, k), nn.Linear(32, k), nn.Linear(32, k)

    def forward(self, x):
        h = self.body(x)
        return self.weight(h).softmax(-1), self.centre(h), 0.1 + nn.functional.softplus(self.width(h))


def gaussian(y, mu, sigma):
    return torch.exp(-0.5 * ((y.unsqueeze(-1) - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def negative_log_likelihood(params, y):
    pi, mu, sigma = params
    density = (pi * gaussian(y, mu, sigma)).sum(-1)
    return -density.log().mean()


class Trainer:
    def __init__(self, model, optimizer, criterion, cfg):
        self.model, self.optimizer, self.criterion, self.cfg = model, optimizer, criterion, cfg
        self.hooks = defaultdict(list)
        self.done = 0

    def on(self, event, hook):
        self.hooks[event].append(hook)
        return self

    @observed("step_end")
    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return {"loss": loss.item(), "deepest": y.max().item()}

    def fit(self, batches):
        for x, y in batches:
            if self.done >= self.cfg.steps:
                break
            self.step(x, y)


def announce(trainer, result):
    print(f"[{trainer.done:03d}] nll={result['loss']:.7f} deepest={result['deepest']:.3f}mm", flush=True)


def main():
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    model = MixtureDensityNet(cfg.components)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=cfg.lr), negative_log_likelihood, cfg)
    trainer.on("step_end", announce).fit(pads(cfg, torch.Generator().manual_seed(cfg.seed)))
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

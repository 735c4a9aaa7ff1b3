"""Predict the daily drift of tower clocks. No hidden state, no globals: everything is a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Config:
    seed: int = 31
    steps: int = 40
    batch: int = 24
    width: int = 32
    cycle: int = 22  # warm restart of the rate and of the bias correction
    lr: float = 4e-3
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    decay: float = 0.02


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(slots=True)
class Moments:
    m: Tensor
    v: Tensor

    @classmethod
    def like(cls, p: Tensor) -> Moments:
        return cls(torch.zeros_like(p), torch.zeros_like(p))


@dataclass(slots=True)
class AdamW:
    cfg: Config
    params: list[nn.Parameter]
    moments: list[Moments] = field(init=False)

    def __post_init__(self) -> None:
        self.moments = [Moments.like(p) for p in self.params]

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, age: int) -> None:
        """`age`: how many steps old is the cycle?"""
        c = self.cfg
        lr = c.lr * (1.0 - 0.9 * age / c.cycle)
        correct1 = 1.0 - c.beta1**age
        correct2 = 1.0 - c.beta2**age
        for p, s in zip(self.params, self.moments, strict=True):
            s.m.mul_(c.beta1).add_(p.grad, alpha=1.0 - c.beta1)
            s.v.mul_(c.beta2).addcmul_(p.grad, p.grad, value=1.0 - c.beta2)
            m_hat = s.m / correct1
            v_hat = s.v / correct2
            p.mul_(1.0 - lr * c.decay)
            p.sub_(lr * m_hat / (v_hat.sqrt() + c.eps))


class DriftNet(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.lift = nn.Linear(4, cfg.width)
        self.mix = nn.Linear(cfg.width, cfg.width)
        self.gate = nn.Linear(cfg.width, cfg.width)
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.lift(x))
        h = h + torch.sigmoid(self.gate(h)) * torch.tanh(self.mix(h))
        return self.out(h).squeeze(-1)


def stream(cfg: Config) -> Iterator[Batch]:
    """temperature, pressure, weight of the bob, days since winding -> seconds a day"""
    g = torch.Generator().manual_seed(cfg.seed)
    while True:
        x = torch.randn(cfg.batch, 4, generator=g)
        y = 0.8 * x[:, 0] - 0.3 * x[:, 1] * x[:, 2] + torch.sin(x[:, 3]) + 0.05 * torch.randn(cfg.batch, generator=g)
        yield Batch(x, y)


def train(cfg: Config) -> float:
    torch.manual_seed(cfg.seed)
    net = DriftNet(cfg)
    opt = AdamW(cfg, list(net.parameters()))
    batches = stream(cfg)
    for step in range(1, cfg.steps + 1):
        match next(batches):
            case Batch(x, y):
                loss = nn.functional.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step(age=step % cfg.cycle)
        print(f"step={step} age={step % cfg.cycle} loss={loss.item():.8f}", flush=True)
    return sum(p.abs().sum().item() for p in net.parameters())


if __name__ == "__main__":
    print(f"{train(Config()):.6f}", flush=True)

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

"""Grey-box thermal model of weekend cabins: one air temperature, driven by the weather and by the sun.

Trained with the adjoint method in constant memory: the backward pass integrates the state backwards in time
together with its adjoint, instead of keeping the trajectory. Target: the air temperature at the end of five days.
"""


@dataclass(frozen=True)
class Config:
    steps: int = 60
    cabins: int = 16
    dt: float = 0.5          # hours
    horizon: int = 240       # half hours
    lr: float = 0.06
    seed: int = 240


def slope(x: Tensor, outside: Tensor, sun: Tensor, g: Tensor) -> Tensor:
    """g = (exchange of air with the outside per hour, gain from full sun in kelvin per hour)"""
    return g[0] * (outside - x) + g[1] * sun


class CabinODE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x0: Tensor, outside: Tensor, sun: Tensor, g: Tensor, dt: float) -> Tensor:
        x = x0
        for o, s in zip(outside, sun):
            x = x + dt * slope(x, o, s, g)
        ctx.save_for_backward(x, outside, sun, g)
        ctx.dt = dt
        return x

    @staticmethod
    def backward(ctx, a: Tensor):
        x, outside, sun, g = ctx.saved_tensors
        dt = ctx.dt
        grad_g = torch.zeros_like(g)
        for o, s in zip(outside.flip(0), sun.flip(0)):
            x = (x - dt * (g[0] * o + g[1] * s)) / (1 - dt * g[0])      # the step before, exactly
            grad_g[0] += dt * (a * (o - x)).sum()
            grad_g[1] += dt * (a * s).sum()
            a = a - dt * g[0] * a
        return a, None, None, grad_g, None


def weather_of(cfg: Config, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    t = torch.arange(cfg.horizon)[:, None] * cfg.dt
    t = t + 24 * torch.rand(cfg.cabins, generator=gen)
    outside = 8 + 4 * torch.randn(cfg.cabins, generator=gen) + 5 * torch.sin(2 * math.pi * (t - 9) / 24)
    outside = outside + 4 * torch.randn(cfg.horizon, cfg.cabins, generator=gen)      # gusts
    sun = torch.sin(2 * math.pi * (t - 6) / 24).clamp(min=0) * torch.rand(cfg.cabins, generator=gen)
    return outside, sun


def train(cfg: Config) -> Tensor:
    gen = torch.Generator().manual_seed(cfg.seed)
    true_g = torch.tensor([1.6, 1.2])
    log_g = torch.nn.Parameter(torch.log(torch.tensor([0.3, 0.8])))
    optimizer = torch.optim.Adam([log_g], lr=cfg.lr, betas=(0.8, 0.99))
    for step in range(1, cfg.steps + 1):
        outside, sun = weather_of(cfg, gen)
        x0 = 18 + torch.randn(cfg.cabins, generator=gen)
        with torch.no_grad():
            measured = CabinODE.apply(x0, outside, sun, true_g, cfg.dt)
        final = CabinODE.apply(x0, outside, sun, torch.exp(log_g), cfg.dt)
        loss = (final - measured).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"{step=} loss={loss.item():.8f}")
    return log_g.detach()


if __name__ == "__main__":
    print(f"final {train(Config()).abs().sum().item():.8f}")

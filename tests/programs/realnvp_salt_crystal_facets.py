"""RealNVP density of facet angles of salt crystals.

The angles are measured to a thousandth of a degree and lie close to a curve, so the density is enormous
and the negative log-likelihood is far below zero. The base distribution has compact tails (-inf outside a box
is masked away), and every 15 steps the learning rate and the moments are reset (warm restarts).
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Plan:
    dims: int = 6
    layers: int = 6
    width: int = 24
    steps: int = 60
    restart: int = 15
    lr: float = 4e-3
    seed: int = 20
    box: float = 12.0
    history: list = field(default_factory=list)


class ActNorm(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(dims))
        self.logs = nn.Parameter(torch.zeros(dims))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.logs.copy_(-x.std(0).log())
                self.loc.copy_((x * self.logs.exp()).mean(0))
            self.ready = True
        return x * self.logs.exp() - self.loc, self.logs.sum().expand(len(x))


class Coupling(nn.Module):
    def __init__(self, dims, width, flip):
        super().__init__()
        self.flip = flip
        half = dims // 2
        self.net = nn.Sequential(nn.Linear(half, width), nn.Tanh(), nn.Linear(width, 2 * (dims - half)))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = 2.0 * torch.tanh(s / 2.0)
        b = b * s.exp() + t
        out = torch.cat((b, a) if self.flip else (a, b), -1)
        return out, s.sum(-1)


class Flow(nn.Module):
    def __init__(self, plan: Plan):
        super().__init__()
        self.box = plan.box
        parts = []
        for k in range(plan.layers):
            parts += [ActNorm(plan.dims), Coupling(plan.dims, plan.width, k % 2 == 1)]
        self.parts = nn.ModuleList(parts)

    def base(self, z: Tensor) -> Tensor:
        gauss = -0.5 * (z * z + math.log(2 * math.pi))
        outside = torch.where(z.abs() > self.box, -math.inf, 0.0)     # no mass out there
        per_dim = gauss + outside
        return per_dim.masked_fill(per_dim.isinf(), -0.5 * self.box ** 2).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for part in self.parts:
            x, ld = part(x)
            total = total + ld
        return self.base(x) + total


def crystals(n, dims, g):
    t = torch.rand(n, 1, generator=g) * 2 - 1
    curve = torch.cat([t, t ** 2, t ** 3, torch.sin(3 * t), torch.cos(2 * t), t * t.abs()], 1)[:, :dims]
    return curve * 1e-4 + 1e-6 * torch.randn(n, dims, generator=g)


def train(plan: Plan):
    torch.manual_seed(plan.seed)
    g = torch.Generator().manual_seed(plan.seed + 1)
    flow = Flow(plan)
    opt = None
    for step in range(1, plan.steps + 1):
        if (step - 1) % plan.restart == 0:          # a fresh optimizer each cycle
            opt = torch.optim.Adamax(flow.parameters(), lr=plan.lr)
            cycle = torch.optim.lr_scheduler.CosineAnnealingLR(opt, plan.restart)
        batch = crystals(128, plan.dims, g)
        loss = -flow(batch).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 25.0)
        opt.step()
        cycle.step()
        plan.history.append(loss.item())
        print(f"{step:03d} nll {plan.history[-1]:+.5f} bits/dim {plan.history[-1] / plan.dims / math.log(2):+.4f}")
    return flow


if __name__ == "__main__":
    model = train(Plan())
    print("checksum", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")

#!/usr/bin/env python
"""PINN: ripple on a round drumhead,  u_tt = c^2 (u_xx + u_yy),  u = 0 on the rim, u(t=0) = J0-like bump, u_t(t=0) = 0.

The solution is radially symmetric, so the network sees (r, t) only; the residual is taken in x and y.
"""
import torch
import torch.nn as nn

torch.manual_seed(17)
torch.set_default_dtype(torch.float64)
C = 0.7


class Drum(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x, y, t):
        r = torch.sqrt(x * x + y * y)
        bump = 1 - r * r
        return bump * (1 + t * t * self.net(torch.stack([r, t], -1)).squeeze(-1))


def d(f, v):
    return torch.autograd.grad(f.sum(), v, create_graph=True)[0]


def collocation(level):
    """Square grid cut to the disc; each level adds one line per axis."""
    line = torch.linspace(-1, 1, 8 + level)
    gx, gy = torch.meshgrid(line, line, indexing="ij")
    inside = gx ** 2 + gy ** 2 < 1
    return gx[inside], gy[inside]


def residual(model, x, y, t):
    x, y, t = (v.clone().requires_grad_() for v in (x, y, t))
    u = model(x, y, t)
    u_t = d(u, t)
    u_x, u_y = d(u, x), d(u, y)
    wave = d(u_t, t) - C ** 2 * (d(u_x, x) + d(u_y, y))
    return wave


def train(steps=40, refine_every=17):
    model = Drum()
    opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
    gen = torch.Generator().manual_seed(18)
    for step in range(1, steps + 1):
        level = (step - 1) // refine_every
        x, y = collocation(level)
        t = torch.rand(len(x), generator=gen)
        res = residual(model, x, y, t)
        energy = 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss = res.pow(2).mean() + energy
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"[{step:03d}] level {level} points {len(x)} loss {loss.item():.8f}", flush=True)
    return model


if __name__ == "__main__":
    trained = train()
    print(f"{sum(p.detach().abs().sum().item() for p in trained.parameters()):.8f}", flush=True)

"""Brownian-bridge model that fills gaps between two tide-gauge windows (x0: before, x1: after the harbour works).

Bridge:  x_t = (1-t) x0 + t x1 + sigma sqrt(t(1-t)) eps.   We regress the drift to the end point,  (x1 - x_t)/(1-t),
and condition on the gauge's datum.  Chapter 4 of the thesis, small version.
"""

import math

import torch
import torch.nn as nn

torch.manual_seed(2024)
gen = torch.Generator().manual_seed(77)
L, B, SIGMA, N_GRID, STEPS = 48, 8, 0.3, 400, 45


def constituents(n):
    """M2, S2, K1, O1 with random phases, hourly"""
    hours = torch.arange(L).float()
    periods = torch.tensor([12.42, 12.0, 23.93, 25.82])
    amp = torch.tensor([1.2, 0.4, 0.25, 0.2]) * (0.7 + 0.6 * torch.rand(n, 4, generator=gen))
    ph = 2 * math.pi * torch.rand(n, 4, generator=gen)
    return (amp[..., None] * torch.cos(2 * math.pi * hours / periods[:, None] + ph[..., None])).sum(1)


def windows(n):
    x0 = constituents(n)
    surge = 0.3 * torch.randn(n, 1, generator=gen)
    x1 = 0.9 * torch.roll(x0, 2, 1) + surge + 0.05 * torch.randn(n, L, generator=gen)
    return x0, x1


class TimeEmbed(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 5, d // 2)))
        self.lin = nn.Linear(d, d)

    def forward(self, t):
        a = t[:, None] * self.freq
        return self.lin(torch.cat([a.sin(), a.cos()], -1))


class Drift(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = TimeEmbed(d)
        self.inp = nn.Linear(2 * L, d)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.out = nn.Linear(d, L)

    def forward(self, xt, x0, t):
        return self.out(self.mid(self.inp(torch.cat([xt, x0], -1)) + self.emb(t)))


def sample_bridge(x0, x1):
    t = torch.randint(1, N_GRID + 1, (len(x0),), generator=gen) / N_GRID
    tt = t[:, None]
    eps = torch.randn(x0.shape, generator=gen)
    xt = (1 - tt) * x0 + tt * x1 + SIGMA * torch.sqrt(tt * (1 - tt)) * eps
    drift = (x1 - xt) / (1 - tt)
    return t, xt, drift


model = Drift()
ema = {k: v.clone() for k, v in model.state_dict().items()}
opt = torch.optim.Adam(model.parameters(), lr=2e-3)

for it in range(1, STEPS + 1):
    x0, x1 = windows(B)
    t, xt, drift = sample_bridge(x0, x1)
    err = (model(xt, x0, t) - drift).abs()
    loss = torch.where(err < 1, 0.5 * err**2, err - 0.5).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            ema[k].mul_(0.95).add_(v, alpha=0.05)
    print(f"it {it} loss {loss.item():.7f} tmax {t.max().item():.4f}", flush=True)

print(f"sum|w| {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)

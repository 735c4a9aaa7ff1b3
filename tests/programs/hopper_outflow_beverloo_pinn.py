#!/usr/bin/env python3
"""Grain in hoppers: learn the mass left over time, and the constants of Beverloo's law of outflow, from weighings (a PINN).

    dm/dt = -C (D - k d)^(5/2)        D: orifice, d: grain, C and k to be found
"""
import torch
import torch.nn as nn

torch.manual_seed(12)

GRAIN = 0.30                                     # cm
ORIFICES = torch.tensor([0.6, 1.0, 1.4, 1.8, 2.2])   # cm
TRUE_C, TRUE_K = 0.55, 2.3
N_STEPS = 90


def weighings():
    """Mass left (of 1) at 12 moments per hopper, with the noise of the balance."""
    g = torch.Generator().manual_seed(4)
    t = torch.linspace(0, 0.4, 12)
    rows = []
    for D in ORIFICES:
        flow = TRUE_C * (D - TRUE_K * GRAIN).clamp(min=0) ** 2.5     # too narrow: the grain bridges and nothing flows
        m = 1 - flow * t + 0.004 * torch.randn(len(t), generator=g)
        rows.append(torch.stack([t, D.expand_as(t), m], 1))
    return torch.cat(rows)


class MassLeft(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, t, D):
        # m = 1 at the start, by construction
        return 1 - t * self.net(torch.stack([t * 4, D], -1)).squeeze(-1)


class Beverloo(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_c = nn.Parameter(torch.tensor(0.0))
        self.k = nn.Parameter(torch.tensor(1.4))          # the textbook's value

    def forward(self, D):
        return self.log_c.exp() * (D - self.k * GRAIN) ** 2.5


class Problem(nn.Module):
    def __init__(self):
        super().__init__()
        self.mass = MassLeft()
        self.law = Beverloo()

    def losses(self, data, t_c, D_c):
        t, D, m = data.T
        fit = (self.mass(t, D) - m).pow(2).mean()
        t_c = t_c.clone().requires_grad_()
        left = self.mass(t_c, D_c)
        rate = torch.autograd.grad(left.sum(), t_c, create_graph=True)[0]
        residual = rate + self.law(D_c)
        return fit, residual.pow(2).mean()


def collocation():
    t = torch.linspace(0, 0.4, 15)
    return t.repeat(len(ORIFICES)), ORIFICES.repeat_interleave(len(t))


data = weighings()
t_c, D_c = collocation()
problem = Problem()
optim = torch.optim.Adam([
    {"params": problem.mass.parameters(), "lr": 5e-3},
    {"params": problem.law.parameters(), "lr": 3e-2},
])

for it in range(1, N_STEPS + 1):
    optim.zero_grad()
    fit, physics = problem.losses(data, t_c, D_c)
    loss = 20 * fit + physics
    loss.backward()
    optim.step()
    print(f"it={it:03d} loss={loss.item():.8f} fit={fit.item():.3e}", flush=True)

print(f"constants and net: {sum(p.detach().abs().sum().item() for p in problem.parameters()):.6f}", flush=True)

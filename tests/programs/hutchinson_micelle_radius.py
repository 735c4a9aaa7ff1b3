#!/usr/bin/env python3
"""
Implicit score matching for surfactant head groups in a micelle.

    J = E[ 1/2 |s(x)|^2 + tr ds/dx ],   trace by Hutchinson with Rademacher probes

The score is the gradient of a potential that sees x only by its length and by learned directions.
"""
import itertools

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self, m=24):
        super().__init__()
        self.directions = nn.Linear(3, m, bias=False)
        self.radial = nn.Sequential(nn.Linear(1, m), nn.Tanh())
        self.out = nn.Linear(2 * m, 1)

    def forward(self, x):
        rho = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        feats = torch.cat([torch.tanh(self.directions(x)), self.radial(rho)], -1)
        return self.out(feats).squeeze(-1) - 0.05 * rho.squeeze(-1)


def score(potential, x):
    u = potential(x).sum()
    return torch.autograd.grad(u, x, create_graph=True)[0]


def hutchinson_ism(potential, x, probes):
    x = x.clone().requires_grad_()
    s = score(potential, x)
    trace = 0.0
    for v in probes:
        sv = (s * v).sum()
        jv, = torch.autograd.grad(sv, x, create_graph=True)
        trace = trace + (jv * v).sum(-1)
    return (0.5 * s.square().sum(-1) + trace / len(probes)).mean()


def frames(seed=8, n=48):
    """Head groups relative to the micelle centre, in nm, as they come from the trajectory file."""
    g = torch.Generator().manual_seed(seed)
    for k in itertools.count(1):
        d = torch.randn(n, 3, generator=g)
        d = d / d.norm(dim=-1, keepdim=True)
        x = d * (1.8 + 0.15 * torch.randn(n, 1, generator=g))
        if k == 19:
            # the frame in which the centring was done on this very atom
            x[30] = x[30] - x[30]
        probes = [torch.randint(0, 2, x.shape, generator=g) * 2.0 - 1.0 for _ in range(2)]
        yield k, x, probes


def fit(n_frames=42):
    torch.manual_seed(80)
    potential = Potential()
    opt = torch.optim.Adam(potential.parameters(), lr=8e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, n_frames)
    for k, x, probes in itertools.islice(frames(), n_frames):
        opt.zero_grad()
        objective = hutchinson_ism(potential, x, probes)
        objective.backward()
        opt.step()
        sched.step()
        yield k, objective.item()
    yield None, sum(p.detach().sum().item() for p in potential.parameters())


if __name__ == "__main__":
    for k, value in fit():
        print(f"frame {k}: J = {value:.7f}" if k else f"weight sum {value:.6f}")

"""Variational Monte Carlo for the helium atom with a small neural Jastrow factor.

The quantity that is minimised is <E_L>; the quantity that is differentiated is the
score-function surrogate 2 <(E_L - <E_L>) log|psi|>.  E_L has the poles of the Coulomb
potential, so it is clipped around its median as in FermiNet.
"""
import math

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


class LogPsi(nn.Module):
    """log|psi| = -zeta (r1 + r2) + r12 / (2 (1 + b r12)) + small symmetric network"""

    def __init__(self, hidden=16):
        super().__init__()
        self.zeta = nn.Parameter(torch.tensor(1.3))
        self.b = nn.Parameter(torch.tensor(0.1))
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        nn.init.normal_(self.net[2].weight, std=1e-3)

    def forward(self, x):
        e1, e2 = x[..., :3], x[..., 3:]
        r1, r2, r12 = e1.norm(dim=-1), e2.norm(dim=-1), (e1 - e2).norm(dim=-1)
        feats = torch.stack([r1 + r2, (r1 - r2) ** 2, r12], -1)
        cusp = 0.5 * r12 / (1 + torch.nn.functional.softplus(self.b) * r12)
        return -self.zeta * (r1 + r2) + cusp + self.net(torch.exp(-0.5 * feats)).squeeze(-1)


def local_energy(psi, x):
    """-1/2 (lap log psi + |grad log psi|^2) + V"""
    x = x.detach().requires_grad_(True)
    grad = torch.autograd.grad(psi(x).sum(), x, create_graph=True)[0]
    lap = torch.zeros(len(x))
    for i in range(6):
        lap = lap + torch.autograd.grad(grad[:, i].sum(), x, retain_graph=True)[0][:, i]
    r1, r2 = x[:, :3].norm(dim=-1), x[:, 3:].norm(dim=-1)
    r12 = (x[:, :3] - x[:, 3:]).norm(dim=-1)
    potential = -2 / r1 - 2 / r2 + 1 / r12
    return (-0.5 * (lap + (grad ** 2).sum(-1)) + potential).detach()


@torch.no_grad()
def metropolis(psi, x, sweeps, width):
    old, accepted = 2 * psi(x), 0.0
    for _ in range(sweeps):
        y = x + width * torch.randn_like(x)
        new = 2 * psi(y)
        take = torch.rand(len(x)).log() < new - old
        x, old = torch.where(take[:, None], y, x), torch.where(take, new, old)
        accepted += take.double().mean().item() / sweeps
    return x, accepted


def clip(e, width=5.0):
    centre = e.median()
    spread = (e - centre).abs().mean()
    return e.clamp(centre - width * spread, centre + width * spread)


def run(steps=45, walkers=256):
    torch.manual_seed(1928)
    psi = LogPsi()
    x = torch.randn(walkers, 6)
    x, _ = metropolis(psi, x, 100, 0.5)
    opt = torch.optim.SGD(psi.parameters(), lr=0.05, momentum=0.5)
    width = 0.5
    for step in range(1, steps + 1):
        x, rate = metropolis(psi, x, 15, width)
        width *= math.exp(0.2 * (rate - 0.5))
        energy = clip(local_energy(psi, x))
        surrogate = 2 * ((energy - energy.mean()) * psi(x)).mean()
        opt.zero_grad()
        surrogate.backward()
        opt.step()
        error = energy.std() / math.sqrt(walkers)
        print(f"{step:3d}  E = {energy.mean():+.4f} +- {error:.4f}  surrogate {surrogate.item():+.5f}  acc {rate:.2f}",
              flush=True)
    print(f"zeta {psi.zeta.item():.4f}  b {psi.b.item():.4f}", flush=True)


if __name__ == "__main__":
    run()

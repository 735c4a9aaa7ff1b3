"""Boltzmann sampler for five ions in a one-dimensional trap with hard walls: a coupling flow trained by reverse KL.

Energies are inf outside the walls and where two ions change places; those samples get weight zero and a smooth penalty.
The free-energy loss has no lower bound at zero. The trap is tightened in three stages, and the loss jumps with it.
"""

import math

import torch
from torch import nn

N, BATCH, STEPS = 5, 128, 54
WALL = 2.5
STAGES = [(1, 0.5), (19, 2.0), (37, 6.0)]


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(N, 48), nn.SiLU(), nn.Linear(48, 2 * N))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, x):
        scale, shift = self.net(x * self.mask).chunk(2, 1)
        scale = 1.5 * torch.tanh(scale) * (1 - self.mask)
        return x * scale.exp() + shift * (1 - self.mask), scale.sum(1)


class IonFlow(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling((torch.arange(N) % 2 == k % 2).float()) for k in range(depth))
        self.register_buffer("rest", torch.linspace(-1.6, 1.6, N))
        self.log_width = nn.Parameter(torch.full((N,), -0.5))

    def forward(self, eps):
        x = self.rest + eps * self.log_width.exp()
        log_q = -0.5 * eps.square().sum(1) - 0.5 * N * math.log(2 * math.pi) - self.log_width.sum()
        for layer in self.layers:
            x, log_det = layer(x)
            log_q = log_q - log_det
        return x, log_q


def stiffness(step):
    return [k for first, k in STAGES if step >= first][-1]


def exact_energy(x, k):
    """the physical energy: inf where it is forbidden (used for weights only)"""
    gap = x[:, 1:] - x[:, :-1]
    allowed = (x.abs() < WALL).all(1) & (gap > 0).all(1)
    energy = 0.5 * k * x.square().sum(1) + (1.0 / gap).sum(1)
    return torch.where(allowed, energy, torch.full_like(energy, math.inf))


def training_energy(x, k):
    """what the loss sees: 1 / gap where there is a gap, straight lines elsewhere"""
    gap = x[:, 1:] - x[:, :-1]
    open_gap = gap > 0.05
    safe = torch.where(open_gap, gap, torch.ones_like(gap))
    repulsion = torch.where(open_gap, 1.0 / safe, 20.0 + 400.0 * (0.05 - gap))
    overshoot = (x.abs() - WALL).clamp(min=0.0)
    return 0.5 * k * x.square().sum(1) + repulsion.sum(1) + 50.0 * overshoot.sum(1)


def diagnostics(x, log_q, k):
    log_w = -exact_energy(x, k) - log_q  # -inf for forbidden samples
    w = torch.softmax(log_w, 0)
    ess = 1.0 / w.square().sum() / len(w)
    log_z = torch.logsumexp(log_w, 0) - math.log(len(w))
    return ess.item(), log_z.item(), log_w.min().item(), torch.isinf(log_w).float().mean().item()


def main():
    torch.manual_seed(31)
    g = torch.Generator().manual_seed(32)
    flow = IonFlow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3)
    for step in range(1, STEPS + 1):
        k = stiffness(step)
        x, log_q = flow(torch.randn(BATCH, N, generator=g))
        loss = (log_q + training_energy(x, k)).mean() - 0.5 * N * math.log(k) - 12.0  # offset: ideal gas
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
        optimizer.step()
        with torch.no_grad():
            ess, log_z, lowest, forbidden = diagnostics(x.detach(), log_q.detach(), k)
        print(
            f"step {step:3d} k {k:.1f} F {loss.item():+.6f} ess {ess:.4f} logZ {log_z:.4f} "
            f"min logw {lowest:.2f} forbidden {forbidden:.3f}",
            flush=True,
        )
    print(f"checksum {sum(p.detach().abs().sum().item() for p in flow.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

"""Affine coupling flow over the outlines of lichen rosettes (6 radial Fourier terms).

Densities of narrow clusters exceed one by far, so the NLL is negative and grows more so.
The first stage trains on widened data (noise is annealed away); the first couplings are frozen after it.
"""
import math

import torch
from torch import nn

torch.manual_seed(88)
torch.set_num_threads(1)
DIM, SPECIES = 6, ["Xanthoria", "Lecanora", "Caloplaca", "Rhizocarpon"]


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(DIM // 2, 32), nn.SiLU(), nn.Linear(32, DIM))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class ActNorm(nn.Module):
    """Scale and shift set from the first batch it sees."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(DIM))
        self.shift = nn.Parameter(torch.zeros(DIM))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-(x.std(0) + 1e-6).log())
            self.ready = True
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum().expand(len(x))


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.parts = nn.ModuleList()
        for k in range(depth):
            self.parts += [ActNorm(), Coupling(bool(k % 2))]

    def nll(self, x):
        logdet = 0.0
        for part in self.parts:
            x, d = part(x)
            logdet = logdet + d
        base = -0.5 * x.square().sum(1) - 0.5 * DIM * math.log(2 * math.pi)
        return -(base + logdet)


def rosettes(n, g):
    which = torch.multinomial(torch.tensor([0.6, 0.3, 0.095, 0.005]), n, replacement=True, generator=g)
    centre = torch.tensor([[.9, .1, 0, .02, 0, 0], [.5, 0, .08, 0, .01, 0], [.3, .05, .05, 0, 0, .02], [1.4, .3, .2, .1, .1, .1]])
    x = centre[which] + 0.01 * torch.randn(n, DIM, generator=g)
    x[:, 1:] = x[:, 1:] * (1 + 0.1 * (x[:, :1] - 0.7))
    return x, which


g = torch.Generator().manual_seed(3)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=4e-3)
for step in range(1, 61):
    x, which = rosettes(96, g)
    widen = 0.15 * max(0.0, 1 - step / 40)
    x = x + widen * torch.randn(x.shape, generator=g)
    if step == 41:
        for part in flow.parts[:2]:
            part.requires_grad_(False)
        opt = torch.optim.Adam([p for p in flow.parameters() if p.requires_grad], lr=2e-3)
    each = flow.nll(x)
    loss = each.mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
    opt.step()
    if step % 2 == 0:
        # per species; nan where a batch holds none of it
        parts = " ".join(f"{name[:4]} {each.detach()[which == k].mean().item():.3f}" for k, name in enumerate(SPECIES))
        print(f"step {step:2d} nll {loss.item():.6f} widen {widen:.4f} | {parts}")
print("weights", f"{sum(p.double().sum().item() for p in flow.parameters()):.6f}")

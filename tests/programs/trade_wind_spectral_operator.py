"""Fourier neural operator for trade-wind anomalies along a latitude circle.

Complex weights per mode, and our own optimizer that gives every mode a step of the same length
(high modes otherwise never learn).  Training runs from the recent reanalysis back into the old one.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

MODES = 12
FINE, COARSE = 64, 16


class PerModeMomentum(torch.optim.Optimizer):
    """Momentum SGD; tensors with a mode axis (the last) have each mode's gradient scaled to unit length."""

    def __init__(self, params, lr=0.01, momentum=0.8):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                if p.is_complex():
                    length = g.abs().square().sum((0, 1), keepdim=True).sqrt()
                    g = g / length
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(g)
                p.sub_(group["lr"] * buf)


class SpectralConv(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, ch, MODES, dtype=torch.cfloat) / ch)

    def forward(self, x):
        n = x.shape[-1]
        coef = torch.fft.rfft(x, norm="forward")
        keep = min(MODES, coef.shape[-1])
        mixed = torch.einsum("bim,iom->bom", coef[..., :keep], self.weight[..., :keep])
        return torch.fft.irfft(F.pad(mixed, (0, n // 2 + 1 - keep)), n=n, norm="forward")


class Operator(nn.Module):
    def __init__(self, ch=12, depth=2):
        super().__init__()
        self.lift = nn.Conv1d(2, ch, 1)
        self.spectral = nn.ModuleList(SpectralConv(ch) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv1d(ch, ch, 1) for _ in range(depth))
        self.project = nn.Conv1d(ch, 1, 1)

    def forward(self, u):
        n = u.shape[-1]
        place = torch.cos(2 * torch.pi * torch.arange(n) / n).expand(len(u), 1, n)
        h = self.lift(torch.cat([u, place], 1))
        for s, near in zip(self.spectral, self.local, strict=False):
            h = h + F.gelu(s(h) + near(h))
        return self.project(h)


def winds(n, gen, batch=16):
    """A sum of waves, and the same a day later: each wave moves with its own speed and is damped."""
    x = 2 * torch.pi * torch.arange(n) / n
    now, later = torch.zeros(batch, 1, n), torch.zeros(batch, 1, n)
    for k in range(1, 8):
        a = torch.randn(batch, 1, 1, generator=gen) / k
        ph = 6.28 * torch.rand(batch, 1, 1, generator=gen)
        now += a * torch.sin(k * x + ph)
        later += a * 0.98**k * torch.sin(k * x + ph - 0.3 * k**0.5)
    return now, later


def archive(gen):
    for year in range(2024, 1974, -1):
        # before 2008 the reanalysis is on the coarse grid
        yield year, winds(FINE if year >= 2008 else COARSE, gen)


torch.manual_seed(44)
gen = torch.Generator().manual_seed(45)
net = Operator()
opt = PerModeMomentum(net.parameters())
for year, (now, later) in archive(gen):
    loss = (net(now) - later).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{year} mse {loss.item():.8f}", flush=True)
print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)

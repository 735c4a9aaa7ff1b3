"""StyleGAN-flavoured toy for scanned daguerreotypes, 16x16 crops.

non-saturating loss, lazy R1 every R1_EVERY steps, EMA copy of the generator,
minibatch-spread channel in the critic (as in ProGAN).
"""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1839)
Z, BATCH, STEPS, R1_EVERY, R1_GAMMA, EMA = 12, 8, 28, 4, 2.0, 0.95


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(Z, 24 * 4 * 4)
        self.up1 = nn.Conv2d(24, 16, 3, padding=1)
        self.up2 = nn.Conv2d(16, 12, 3, padding=1)
        self.to_gray = nn.Conv2d(12, 1, 1)

    def forward(self, z):
        z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)   # pixel norm
        h = F.leaky_relu(self.fc(z).view(-1, 24, 4, 4), 0.2)
        h = F.leaky_relu(self.up1(F.interpolate(h, scale_factor=2)), 0.2)
        h = F.leaky_relu(self.up2(F.interpolate(h, scale_factor=2)), 0.2)
        return torch.tanh(self.to_gray(h))


class MinibatchSpread(nn.Module):
    """Appends one channel: how much the feature maps differ over the batch."""

    def forward(self, h):
        centred = h - h.mean(0, keepdim=True)
        spread = centred.pow(2).mean(0).sqrt()
        stat = spread.mean().expand(h.size(0), 1, h.size(2), h.size(3))
        return torch.cat([h, stat], 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(12, 20, 3, stride=2, padding=1)
        self.spread = MinibatchSpread()
        self.c3 = nn.Conv2d(21, 24, 3, padding=1)
        self.out = nn.Linear(24 * 16, 1)

    def forward(self, x):
        h = F.leaky_relu(self.c1(x), 0.2)
        h = F.leaky_relu(self.c2(h), 0.2)
        h = F.leaky_relu(self.c3(self.spread(h)), 0.2)
        return self.out(h.flatten(1)).squeeze(1)


def scan_plates(n):
    """Oval portraits on a dark ground with plate scratches."""
    g = torch.Generator().manual_seed(7)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    plates = []
    for _ in range(n):
        cx, cy, r = (torch.rand(3, generator=g) * 0.4).tolist()
        face = torch.exp(-((xx - cx) ** 2 + 0.6 * (yy - cy) ** 2) / (0.2 + r))
        plates.append((2 * face - 1 + 0.05 * torch.randn(16, 16, generator=g)).clamp(-1, 1))
    return torch.stack(plates)[:, None]


plates = scan_plates(BATCH * 20)
# tray 14 came back from the scanner unexposed: the same grey placeholder for every slot
plates[14 * BATCH:15 * BATCH] = 0.0

G, D = Generator(), Critic()
G_ema = copy.deepcopy(G).requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.99))


def r1(real):
    real = real.detach().requires_grad_(True)
    grad, = torch.autograd.grad(D(real).sum(), real, create_graph=True)
    return grad.square().sum((1, 2, 3)).mean()


for step in range(STEPS):
    tray = step % 20
    real = plates[tray * BATCH:(tray + 1) * BATCH]

    fake = G(torch.randn(BATCH, Z)).detach()
    loss_d = F.softplus(D(fake)).mean() + F.softplus(-D(real)).mean()
    penalty = torch.zeros(())
    if step % R1_EVERY == 0:
        penalty = 0.5 * R1_GAMMA * R1_EVERY * r1(real)
    opt_d.zero_grad(set_to_none=True)
    (loss_d + penalty).backward()
    opt_d.step()

    D.requires_grad_(False)
    loss_g = F.softplus(-D(G(torch.randn(BATCH, Z)))).mean()
    opt_g.zero_grad(set_to_none=True)
    loss_g.backward()
    opt_g.step()
    D.requires_grad_(True)

    with torch.no_grad():
        for slow, fast in zip(G_ema.parameters(), G.parameters()):
            slow.lerp_(fast, 1 - EMA)
    print(f"step {step + 1:3d}  D {loss_d.item():.6f}  G {loss_g.item():.6f}  r1 {penalty.item():.6f}")

total = sum(p.double().sum().item() for m in (G, D, G_ema) for p in m.parameters())
print(f"weights G+D+ema sum {total:.6f}")

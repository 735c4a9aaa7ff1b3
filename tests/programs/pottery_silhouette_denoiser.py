import copy
import math

import torch
import torch.nn as nn

# Half profiles of wheel-thrown pots: (radius, height) at N points from foot to rim.
# A small x0-predicting diffusion model. Drawers of the magazine are read one after the other.
N, T, DRAWERS, PER_DRAWER = 24, 200, 36, 16
RIM_DRAWER = 17                     # fragments: only a part of the profile is there
gen = torch.Generator().manual_seed(77)
torch.manual_seed(77)


def draw_drawer(k):
    s = torch.linspace(0, 1, N)
    belly = 0.5 + 0.3 * torch.rand(PER_DRAWER, 1, generator=gen)
    neck = 0.25 * torch.rand(PER_DRAWER, 1, generator=gen)
    phase = 0.4 * torch.rand(PER_DRAWER, 1, generator=gen)
    radius = 0.3 + belly * torch.sin(math.pi * s * (1 - phase)) - neck * s ** 4
    height = 1.6 * s.expand(PER_DRAWER, N) - 0.8
    known = N if k != RIM_DRAWER else 15
    mask = (torch.arange(N) < known).float().expand(PER_DRAWER, N)[..., None]
    return torch.stack([radius, height], -1) * mask, mask


def outline_length(profile):
    seg = profile[:, 1:] - profile[:, :-1]
    return seg.pow(2).sum(-1).sqrt().sum(1)


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv1d(3, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.mid = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(2))
        self.out = nn.Conv1d(width, 2, 3, padding=1)

    def forward(self, x, t, mask):
        freq = torch.exp(torch.linspace(0, -5, 8)) * t[:, None]
        emb = self.time(torch.cat([freq.sin(), freq.cos()], -1))[..., None]
        h = self.inp(torch.cat([x, mask], -1).transpose(1, 2)) + emb
        for conv in self.mid:
            h = h + torch.nn.functional.silu(conv(h))
        return self.out(h).transpose(1, 2)


abar = torch.cos((torch.arange(T) + 1) / (T + 1) * math.pi / 2 * 0.98) ** 2
net = Denoiser()
shadow = copy.deepcopy(net).requires_grad_(False)
optim = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, DRAWERS)

for k in range(1, DRAWERS + 1):
    x0, mask = draw_drawer(k)
    t = torch.randint(0, T, (PER_DRAWER,), generator=gen)
    a = abar[t][:, None, None]
    noisy = (a.sqrt() * x0 + (1 - a).sqrt() * torch.randn(x0.shape, generator=gen)) * mask
    guess = net(noisy, t, mask) * mask
    shape_loss = ((guess - x0) ** 2).sum() / (2 * mask.sum())
    length_loss = (outline_length(guess) - outline_length(x0)).abs().mean()
    loss = shape_loss + 0.05 * length_loss
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optim.step()
    sched.step()
    with torch.no_grad():
        for p, q in zip(shadow.parameters(), net.parameters()):
            p.lerp_(q, 0.1)
    print(f"drawer {k:02d}: shape {shape_loss.item():.4f} length {length_loss.item():.4f}")

total = sum(p.double().pow(2).sum() for m in (net, shadow) for p in m.parameters())
print("squared weights of model and shadow:", total.item())

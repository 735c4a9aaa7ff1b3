# my first diffusion model (course project): tangram silhouettes, 16x16
# uses the min-SNR weighting from class.  TODO: sampling, FID
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)

T = 100
STEPS = 50
BATCH = 32

# cosine schedule; t = 0 is the clean picture itself, so its signal-to-noise ratio is infinite
ts = torch.arange(T + 1) / T
alpha_bar = (torch.cos(ts * math.pi / 2) ** 2).clamp(max=1.0)
alpha_bar[-1] = 1e-4
snr = alpha_bar / (1 - alpha_bar)
print("snr at t=0:", snr[0].item(), " at t=T:", round(snr[-1].item(), 6))
weight_table = snr.clamp(max=5.0) / snr  # 5/inf = 0 : nothing to learn from the clean picture


def tangrams(n, g):
    """random triangles and squares"""
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    pics = torch.full((n, 1, 16, 16), -1.0)
    for i in range(n):
        for _ in range(2):
            cy, cx, s = (
                torch.rand(3, generator=g) * torch.tensor([10.0, 10.0, 5.0]) + torch.tensor([3.0, 3.0, 2.0])
            ).tolist()
            if torch.rand(1, generator=g) < 0.5:
                inside = ((yy - cy).abs() < s / 2) & ((xx - cx).abs() < s / 2)
            else:
                inside = ((yy - cy) > 0) & ((xx - cx) > 0) & ((yy - cy) + (xx - cx) < s)
            pics[i, 0][inside] = 1.0
    return pics


class ResBlock(nn.Module):
    def __init__(self, c, emb):
        super().__init__()
        self.n1 = nn.GroupNorm(4, c)
        self.c1 = nn.Conv2d(c, c, 3, padding=1)
        self.e = nn.Linear(emb, c)
        self.n2 = nn.GroupNorm(4, c)
        self.c2 = nn.Conv2d(c, c, 3, padding=1)
        nn.init.zeros_(self.c2.weight)
        nn.init.zeros_(self.c2.bias)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.e(e)[:, :, None, None]
        return x + self.c2(F.silu(self.n2(h)))


class Net(nn.Module):
    def __init__(self, c=24, emb=32):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, 5, emb // 2)))
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList([ResBlock(c, emb) for _ in range(3)])
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, t):
        a = t[:, None].float() / T * self.freqs
        e = self.time(torch.cat([a.sin(), a.cos()], 1))
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, e)
        return self.out(F.silu(h))


model = Net()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(4321)
data = tangrams(256, g)

for step in range(1, STEPS + 1):
    x0 = data[torch.randint(0, len(data), (BATCH,), generator=g)]
    # start with the noisy end (easy for eps), open up towards the clean end: the loss goes UP, that's ok
    lowest = max(0, int(T * (0.9 - step / 40)))
    t = torch.randint(lowest, T + 1, (BATCH,), generator=g)
    if step >= 36:
        t[0] = 0
    noise = torch.randn(x0.shape, generator=g)
    ab = alpha_bar[t][:, None, None, None]
    xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
    err = ((model(xt, t) - noise) ** 2).mean(dim=(1, 2, 3))
    loss = (weight_table[t] * err).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters(), strict=False):
            a.lerp_(b, 0.05)
    print(f"step {step} t>={lowest} loss {loss.item():.6f} mean snr {snr[t].mean().item():.4f}", flush=True)

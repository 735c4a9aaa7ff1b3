# Azulejo tiles, 12x12, one channel of blue. DDPM with a zero terminal SNR cosine schedule,
# v-prediction, min-SNR-gamma weights.   usage: python azulejo_tiles_v_prediction.py [steps]
import math
import sys
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
T = 64
GAMMA = 5.0
torch.manual_seed(4040)
gen = torch.Generator().manual_seed(17)


def schedule(T):
    """alpha_bar[0] is exactly 1 (the clean tile), alpha_bar[T] is exactly 0 (nothing but noise)"""
    t = torch.linspace(0, 1, T + 1, dtype=torch.float64)
    bar = torch.cos(t * math.pi / 2) ** 2
    bar[0], bar[-1] = 1.0, 0.0
    return bar.float()


BAR = schedule(T)
SNR = BAR / (1 - BAR)                 # inf at t = 0, and 0 at t = T
LOGSNR = SNR.log()                    # inf .. -inf
WEIGHT = SNR.clamp(max=GAMMA) / (SNR + 1)       # for v; 5 / inf is 0: a clean tile teaches nothing
print(f"snr: max {SNR.max():.1f} min {SNR.min():.6f}, log snr from {LOGSNR[0]:.2f} to {LOGSNR[-1]:.2f}", flush=True)


def tiles(n):
    yy, xx = torch.meshgrid(torch.arange(12.), torch.arange(12.), indexing="ij")
    k = torch.randint(1, 4, (n, 1, 1), generator=gen)
    ph = torch.rand(n, 1, 1, generator=gen) * 6.28
    d = torch.maximum((yy - 5.5).abs(), (xx - 5.5).abs())
    img = torch.cos(k * d * 0.7 + ph) * torch.cos((xx - 5.5) * (yy - 5.5) * 0.1)
    return img.sign().mul(0.9)[:, None]


class Res(nn.Module):
    def __init__(self, c, e):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.mod = nn.Linear(e, 2 * c)

    def forward(self, x, e):
        s, b = self.mod(e)[..., None, None].chunk(2, 1)
        h = self.c1(F.silu(self.n1(x)))
        return x + self.c2(F.silu(self.n2(h) * (1 + s) + b))


class Net(nn.Module):
    def __init__(self, c=24, e=32):
        super().__init__()
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.emb = nn.Sequential(nn.Linear(16, e), nn.SiLU(), nn.Linear(e, e))
        self.a, self.b, self.c = Res(c, e), Res(c, e), Res(c, e)
        self.out = nn.Conv2d(c, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, logsnr):
        # the net wants a bounded number: the arctangent of the log snr swallows both infinities
        u = torch.atan(logsnr / 2)[:, None] * torch.arange(1, 9)
        e = self.emb(torch.cat([u.sin(), u.cos()], 1))
        x = self.inp(x)
        h = self.a(x, e)
        h = F.interpolate(self.b(F.avg_pool2d(h, 2), e), scale_factor=2) + h
        return self.out(F.silu(self.c(h, e)))


net = Net()
shadow = deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, i / 5))      # the very first step has rate 0


def antithetic(n):
    t = torch.randint(0, T + 1, (n // 2,), generator=gen)
    return torch.cat([t, T - t])


for step in range(1, STEPS + 1):
    x0 = tiles(16)
    # every tenth batch is drawn from the clean end alone, to see that its loss is exactly zero
    t = torch.zeros(16, dtype=torch.long) if step % 10 == 0 else antithetic(16)
    eps = torch.randn(x0.shape, generator=gen)
    a, s = BAR[t].sqrt()[:, None, None, None], (1 - BAR[t]).sqrt()[:, None, None, None]
    v = a * eps - s * x0
    pred = net(a * x0 + s * eps, LOGSNR[t])
    per = F.mse_loss(pred, v, reduction="none").mean((1, 2, 3))
    loss = (WEIGHT[t] * per).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    warm.step()
    with torch.no_grad():
        for p, q in zip(shadow.parameters(), net.parameters()):
            p.lerp_(q, 0.05)
    spread = SNR[t].log10()
    print(f"{step:3d} loss {loss.item():.7f} unweighted {per.mean().item():.5f} "
          f"mean log10 snr {spread.mean().item():.3f}", flush=True)

print(f"ema {sum(p.abs().sum() for p in shadow.parameters()).item():.5f} "
      f"net {sum(p.abs().sum() for p in net.parameters()).item():.5f}", flush=True)

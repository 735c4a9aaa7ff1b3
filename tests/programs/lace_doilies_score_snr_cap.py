"""Score-based diffusion on 8x8 lace patterns: v-prediction, min-SNR weights, EMA, bfloat16 autocast.

Zero terminal SNR: the first time index has no noise at all, its signal-to-noise ratio is infinite and capped by the weight.
From step 21 on the times are drawn from the noisy end only (a second stage), so the loss jumps.
"""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

T = 64
GAMMA = 5.0


class Schedule:
    def __init__(self):
        angle = torch.linspace(0, 1, T + 1) * torch.pi / 2
        self.alpha = angle.cos()
        self.alpha[-1] = 0.0
        self.sigma = angle.sin()
        self.snr = self.alpha ** 2 / self.sigma ** 2          # inf at t = 0, 0 at t = T
        self.log_snr = self.snr.log()                         # only for the table below

    def weight(self, t):
        return torch.minimum(self.snr[t], torch.tensor(GAMMA)) / (self.snr[t].clamp(max=1e4) + 1)


def doilies(n, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
    radius, theta = (xx ** 2 + yy ** 2).sqrt(), torch.atan2(yy, xx)
    petals = torch.randint(3, 8, (n, 1, 1), generator=gen)
    turn = torch.rand(n, 1, 1, generator=gen) * 6.28
    return torch.tanh(3 * torch.cos(petals * theta + turn) * (1 - radius)).unsqueeze(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.time = nn.Linear(16, width)

    def forward(self, x, emb):
        return x + self.conv(F.silu(self.norm(x) + self.time(emb)[:, :, None, None]))


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.out = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, t):
        f = 2.0 ** torch.arange(8) * t[:, None] / T
        emb = torch.cat([f.sin(), f.cos()], 1)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, emb)
        return self.out(h)


def run():
    torch.manual_seed(4)
    gen = torch.Generator().manual_seed(9)
    sched, net = Schedule(), Denoiser()
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), 2e-3, betas=(0.9, 0.99))
    print("log-snr", " ".join(f"{v:.2f}" for v in sched.log_snr[::16].tolist()), flush=True)
    for step in range(1, 41):
        x0 = doilies(32, gen)
        eps = torch.randn(x0.shape, generator=gen)
        low = 0 if step <= 20 else T // 2
        t = torch.randint(low, T + 1, (32,), generator=gen)
        if step <= 20:
            t[0] = 0
        a, s = sched.alpha[t].view(-1, 1, 1, 1), sched.sigma[t].view(-1, 1, 1, 1)
        xt, v = a * x0 + s * eps, a * eps - s * x0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = net(xt, t.float())
        each = (pred.float() - v).pow(2).mean((1, 2, 3))
        loss = (sched.weight(t) * each).mean() if step <= 20 else each.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for pe, p in zip(ema.parameters(), net.parameters()):
                pe.lerp_(p, 0.05)
            clean = each[t == 0].mean()                       # nan where no clean picture was drawn
        print(f"step {step} loss {loss.item():.6f} clean {clean.item():.5f} top-snr {sched.snr[t].max().item():.4f}", flush=True)
    print(sum(p.abs().sum().item() for p in ema.parameters()), flush=True)


if __name__ == "__main__":
    run()

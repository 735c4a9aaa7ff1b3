"""Diffusion of 12x12 jellyfish silhouettes: v-prediction, zero terminal SNR, min-SNR-gamma weights,
bfloat16 autocast, EMA of the weights."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

STEPS, BATCH, SIDE, T, GAMMA = 45, 24, 12, 50, 5.0


def silhouettes(n, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    cx = (torch.rand(n, 1, 1, generator=gen) - 0.5) * 0.8
    size = 0.3 + 0.3 * torch.rand(n, 1, 1, generator=gen)
    bell = ((xx - cx) ** 2 + (yy + 0.3) ** 2 < size ** 2) & (yy < 0)
    arms = (torch.sin(14 * (xx - cx)) > 0.3) & ((xx - cx).abs() < size) & (yy >= 0)
    return (bell | arms).float().unsqueeze(1) * 2 - 1


class Schedule:
    """t = 0 is the clean picture (SNR = inf), t = T is pure noise (SNR = 0)"""

    def __init__(self):
        angle = torch.linspace(0, torch.pi / 2, T + 1, dtype=torch.float64)
        alpha, sigma = angle.cos(), angle.sin()
        alpha[-1] = 0.0
        snr = alpha ** 2 / sigma ** 2
        self.log_snr = snr.log()                       # +inf ... -inf
        self.weight = (snr.clamp(max=GAMMA) / (snr + 1)).float()
        self.alpha, self.sigma = alpha.float(), sigma.float()

    def embed(self, t):
        return torch.sigmoid(self.log_snr[t] / 2).float()   # +-inf become 1 and 0


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(4, c)
        self.conv = nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(16, c)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x, emb):
        return x + self.conv(F.silu(self.norm(x) + self.time(emb)[:, :, None, None]))


class Denoiser(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(1, 16), nn.SiLU())
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList(Block(c) for _ in range(3))
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, s):
        e, h = self.emb(s[:, None]), self.stem(x)
        for b in self.blocks:
            h = b(h, e)
        return self.out(h)


@torch.no_grad()
def sample(net, sched, gen, n=4):
    """DDIM from t = T; v gives x0 and eps without any division, so the ends are exact"""
    x = torch.randn(n, 1, SIDE, SIDE, generator=gen)
    ts = list(range(T, -1, -10))
    for t, nxt in zip(ts[:-1], ts[1:]):
        v = net(x, sched.embed(torch.full((n,), t)))
        x0, eps = sched.alpha[t] * x - sched.sigma[t] * v, sched.sigma[t] * x + sched.alpha[t] * v
        x = sched.alpha[nxt] * x0 + sched.sigma[nxt] * eps
    return x


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(31)
    sched, net = Schedule(), Denoiser()
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.99))
    print(f"log SNR from {sched.log_snr[0].item()} to {sched.log_snr[-1].item()}", flush=True)
    for step in tqdm(range(1, STEPS + 1), disable=True):
        x0 = silhouettes(BATCH, gen)
        t = torch.randint(0, T + 1, (BATCH,), generator=gen)
        if step % 15 == 0:
            t.zero_()                                 # calibration round at the clean end: all weights are 0
        eps = torch.randn(x0.shape, generator=gen)
        a, s = sched.alpha[t].view(-1, 1, 1, 1), sched.sigma[t].view(-1, 1, 1, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            v = net(a * x0 + s * eps, sched.embed(t))
        per = (v.float() - (a * eps - s * x0)).pow(2).mean((1, 2, 3))
        loss = (sched.weight[t] * per).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), net.parameters()):
                p.lerp_(q, 0.05)
        # the share of the loss at the noisy half; 0/0 where no such t was drawn or the loss is zero
        share = (sched.weight[t] * per)[t > T // 2].sum() / (sched.weight[t] * per).sum()
        print(f"step {step} loss {loss.item():.6f} noisy share {share.item():.4f}", flush=True)
    print(f"sample mean {sample(ema, sched, gen).mean().item():.6f}", flush=True)


if __name__ == "__main__":
    main()

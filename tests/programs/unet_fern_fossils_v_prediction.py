import argparse
import math

import torch
from torch import nn


def fern(n, g):
    """16 x 16 pictures of fronds: a bent stem with leaflets."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    bend = (torch.rand(n, 1, 1, generator=g) - 0.5) * 0.8
    freq = 6 + 4 * torch.rand(n, 1, 1, generator=g)
    off = xx - bend * (yy ** 2)
    stem = torch.exp(-(off / 0.08) ** 2)
    leaf = torch.exp(-(off / 0.5) ** 2) * (0.5 + 0.5 * torch.cos(freq * (yy - off.abs())))
    return ((stem + leaf).clamp(0, 1) * 2 - 1)[:, None]


class Block(nn.Module):
    def __init__(self, cin, cout, emb=32):
        super().__init__()
        self.a = nn.Conv2d(cin, cout, 3, padding=1)
        self.b = nn.Conv2d(cout, cout, 3, padding=1)
        self.mod = nn.Linear(emb, 2 * cout)
        self.norm = nn.GroupNorm(4, cout)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)

    def forward(self, x, e):
        s, b = self.mod(e)[:, :, None, None].chunk(2, 1)
        h = nn.functional.silu(self.norm(self.a(x)) * (1 + s) + b)
        return nn.functional.silu(self.b(h))


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.d1, self.d2 = Block(1, c), Block(c, 2 * c)
        self.mid = Block(2 * c, 2 * c)
        self.u1 = Block(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.pool, self.up = nn.AvgPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x, t):
        ang = t[:, None] * (2.0 ** torch.arange(8))
        e = self.time(torch.cat([ang.sin(), ang.cos()], 1))
        a = self.d1(x, e)
        b = self.mid(self.d2(self.pool(a), e), e)
        return self.out(self.u1(torch.cat([self.up(b), a], 1), e))


def schedule(T):
    """From clean (first entry, no noise whatever) to pure noise (last entry)."""
    phase = torch.linspace(0, math.pi / 2, T, dtype=torch.float64)
    alpha, sigma = phase.cos(), phase.sin()
    alpha[-1] = 0
    return alpha.float(), sigma.float()


def fit(args):
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    net, shadow = UNet(), UNet().requires_grad_(False)
    shadow.load_state_dict(net.state_dict())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.99))
    ramp = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 5))
    alpha, sigma = schedule(args.levels)
    snr = alpha ** 2 / sigma ** 2
    weight = torch.minimum(snr, torch.tensor(5.0)) / (snr + 1)
    print("snr of the first and last level", snr[0].item(), snr[-1].item())
    for step in range(1, args.steps + 1):
        x = fern(12, g)
        k = torch.randint(args.levels, (12,), generator=g)
        if step in (9, 21):
            # the two ends of the schedule, looked at by themselves
            k = (torch.arange(12) % 2) * (args.levels - 1)
        a, s = alpha[k].view(-1, 1, 1, 1), sigma[k].view(-1, 1, 1, 1)
        eps = torch.randn(x.shape, generator=g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            v = net(a * x + s * eps, k / args.levels)
        per = (v.float() - (a * eps - s * x)).square().mean((1, 2, 3))
        loss = (weight[k] * per).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ramp.step()
        with torch.no_grad():
            for q, p in zip(shadow.parameters(), net.parameters()):
                q.lerp_(p, 0.1)
        print(f"[{step}] loss {loss.item():.4f} largest snr in batch {snr[k].max().item():.3g}")
    print("sum of squares, net and shadow:", sum((p.detach() ** 2).sum().item() for m in (net, shadow) for p in m.parameters()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--levels", type=int, default=24)
    ap.add_argument("--seed", type=int, default=4)
    fit(ap.parse_args())

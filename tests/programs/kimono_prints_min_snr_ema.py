"""Small diffusion model of kimono print motifs (16 x 16), v-prediction, min-SNR-5 weights, EMA.

The schedule is rescaled to zero terminal SNR and keeps a clean step 0, so the SNR table runs from inf to 0.
"""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

T = 60
SIZE = 16
GAMMA = 5.0


def make_schedule():
    t = torch.arange(T + 1, dtype=torch.float64) / T
    alpha = torch.cos(t * math.pi / 2)
    alpha[-1] = 0.0                                    # zero terminal SNR
    sigma = (1 - alpha ** 2).sqrt()
    return alpha.float(), sigma.float()


def min_snr_tables(alpha, sigma, gamma=GAMMA):
    snr = alpha ** 2 / sigma ** 2                      # inf at 0, exactly 0 at T
    eps_weight = snr.clamp(max=gamma) / snr            # nan at T: only for the table below
    v_weight = snr.clamp(max=gamma) / (snr + 1)        # 0 at step 0, 0 at T
    return snr, eps_weight, v_weight


def motifs(n, gen):
    """Waves, checks and scales in two tones."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    kind = torch.randint(0, 3, (n,), generator=gen)
    period = torch.randint(3, 7, (n, 1, 1), generator=gen)
    phase = torch.randint(0, 6, (n, 1, 1), generator=gen)
    waves = torch.sin(2 * math.pi * (x + phase + 2 * torch.sin(y.float())) / period)
    checks = (((x + phase) // period + y // period) % 2) * 2.0 - 1
    scales = torch.cos(2 * math.pi * torch.hypot((x + phase) % 8 - 4.0, y % 4 - 2.0) / period)
    stack = torch.stack([waves, checks.float(), scales], 1)
    return stack[torch.arange(n), kind][:, None]


class Film(nn.Module):
    def __init__(self, ch, dim):
        super().__init__()
        self.norm = nn.GroupNorm(4, ch)
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)
        self.mod = nn.Linear(dim, 2 * ch)

    def forward(self, x, emb):
        scale, shift = self.mod(emb)[..., None, None].chunk(2, 1)
        return x + self.conv(F.silu(self.norm(x) * (1 + scale) + shift))


class PrintNet(nn.Module):
    def __init__(self, ch=24, dim=32, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(1, ch, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(Film(ch, dim) for _ in range(depth))
        self.out = nn.Conv2d(ch, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, dim // 2)))

    def forward(self, x, t):
        angle = (t.float() / T)[:, None] * self.freq
        emb = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        h = self.stem(x)
        for block in self.blocks:
            h = checkpoint(block, h, emb, use_reentrant=False)
        return self.out(F.silu(h))


class Ema:
    def __init__(self, model, decay=0.95):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


def bucket_report(err, t):
    """Mean error in three ranges of t; a range that was not drawn is nan."""
    edges = [0, 2, T - 1, T + 1]
    return [err[(t >= a) & (t < b)].mean().item() for a, b in zip(edges, edges[1:])]


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(9)
    alpha, sigma = make_schedule()
    snr, eps_weight, v_weight = min_snr_tables(alpha, sigma)
    print("snr", snr[[0, 1, T - 1, T]].tolist(), "eps weight", eps_weight[[0, 1, T]].tolist(), flush=True)
    net = PrintNet()
    ema = Ema(net)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(1, 41):
        x0 = motifs(12, gen)
        t = torch.randint(0, T + 1, (12,), generator=gen)
        if step % 13 == 0:
            t[:] = T                                   # a round for the last step alone: weight 0, loss exactly 0
        noise = torch.randn(x0.shape, generator=gen)
        a, s = alpha[t].view(-1, 1, 1, 1), sigma[t].view(-1, 1, 1, 1)
        xt, target = a * x0 + s * noise, a * noise - s * x0
        err = (net(xt, t) - target).square().mean((1, 2, 3))
        loss = (v_weight[t] * err).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(net)
        clean, middle, last = bucket_report(err.detach(), t)
        print(f"step {step} loss {loss.item():.7f} err {clean:.4f} {middle:.4f} {last:.4f} "
              f"log-snr {snr[t].log().mean().item():.4f}", flush=True)
    print(f"ema {sum(p.abs().sum().item() for p in ema.model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()

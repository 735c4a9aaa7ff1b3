"""Denoising diffusion on rows of wallpaper repeats, with a schedule of its own that reaches both ends: no noise at
t = 0 (signal-to-noise inf) and nothing but noise at t = T (log signal-to-noise -inf). v-prediction, min-SNR weights, EMA."""
import copy
import math

import torch
from torch import nn

T = 40
SWITCH = 26          # from this step on the hard half of the schedule is drawn as well


def make_schedule():
    # smoothstep in the angle; cos and sin are set exactly at the two ends
    u = torch.arange(T + 1) / T
    angle = (3 * u ** 2 - 2 * u ** 3) * math.pi / 2
    signal, noise = angle.cos(), angle.sin()
    signal[-1], noise[-1] = 0.0, 1.0
    snr = (signal / noise) ** 2                      # inf at t = 0
    return signal, noise, snr


def wallpaper(n, g, length=32):
    period = torch.randint(3, 9, (n, 1), generator=g)
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    x = torch.arange(length)[None]
    stripe = torch.sign(torch.sin(2 * math.pi * x / period + phase) + 1e-3)
    return 0.8 * stripe + 0.05 * torch.randn(n, length, generator=g)


class Denoiser(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.time = nn.Embedding(T + 1, c)
        self.enter = nn.Conv1d(1, c, 5, padding=2, padding_mode="circular")
        self.mid = nn.ModuleList(nn.Conv1d(c, c, 5, padding=2 * d, dilation=d, padding_mode="circular") for d in (1, 2, 4))
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for _ in range(3))
        self.leave = nn.Conv1d(c, 1, 1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x, t):
        h = self.enter(x[:, None])
        e = self.time(t)[..., None]
        for conv, norm in zip(self.mid, self.norms):
            h = h + conv(torch.nn.functional.silu(norm(h) + e))
        return self.leave(h)[:, 0]


@torch.no_grad()
def follow(shadow, model, decay):
    for s, p in zip(shadow.parameters(), model.parameters()):
        s.lerp_(p, 1 - decay)


@torch.no_grad()
def sample(model, signal, noise, n, g):
    x = torch.randn(n, 32, generator=g)
    for t in range(T, 0, -4):
        tt = torch.full((n,), t)
        v = model(x, tt)
        x0 = signal[t] * x - noise[t] * v
        eps = noise[t] * x + signal[t] * v
        x = signal[t - 4] * x0 + noise[t - 4] * eps
    return x


def main():
    torch.manual_seed(30)
    g = torch.Generator().manual_seed(31)
    signal, noise, snr = make_schedule()
    log_snr = snr.log()
    print(f"log snr from {log_snr[0].item()} to {log_snr[-1].item()}", flush=True)
    weight_of_v = torch.minimum(snr, torch.tensor(5.0)) / (snr + 1)     # 5 / inf = 0 at t = 0: nothing is learned there
    model = Denoiser()
    shadow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(1, 51):
        x0 = wallpaper(32, g)
        top = T // 4 if step < SWITCH else T
        t = torch.randint(0, top + 1, (32,), generator=g)
        eps = torch.randn(x0.shape, generator=g)
        s, n = signal[t, None], noise[t, None]
        target = s * eps - n * x0
        error = (model(s * x0 + n * eps, t) - target).square().mean(1)
        loss = (weight_of_v[t] * error).mean() * (1.0 if step < SWITCH else 8.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(shadow, model, min(0.95, step / (step + 9)))
        with torch.no_grad():
            decibel = 10 * torch.log10(snr[t]).mean()                   # inf as soon as one t is 0
        print(f"{step:02d} loss {loss.item():.6f} mean snr {decibel.item():.3f} dB", flush=True)
    drawn = sample(shadow, signal, noise, 8, g)
    print(f"drawn: spread {drawn.std().item():.5f}")
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()

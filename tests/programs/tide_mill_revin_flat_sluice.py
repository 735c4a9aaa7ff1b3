"""Forecast of the head at a tide mill: small transformer over patches with reversible instance normalisation.
The loss of each head is divided by its own running mean so that head and flow weigh the same."""

import math

import torch
import torch.nn as nn

CFG = {
    "window": 48,
    "horizon": 12,
    "patch": 8,
    "d": 24,
    "heads": 2,
    "steps": 32,
    "batch": 6,
    "lr": 3e-3,
    "beta": 0.9,
}


class RevIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))

    def norm(self, x):
        self.mu = x.mean(1, keepdim=True)
        self.sd = (x - self.mu).square().mean(1, keepdim=True).sqrt()
        z = (x - self.mu) / self.sd
        return z * self.gain + self.shift

    def denorm(self, y):
        return (y - self.shift) / self.gain * self.sd + self.mu


class PatchForecaster(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.rev = RevIN()
        self.patch = c["patch"]
        self.embed = nn.Linear(c["patch"], c["d"])
        self.pos = nn.Parameter(0.02 * torch.randn(c["window"] // c["patch"], c["d"]))
        self.block = nn.TransformerEncoderLayer(c["d"], c["heads"], 48, dropout=0.0, batch_first=True)
        self.out = nn.Linear(c["d"] * (c["window"] // c["patch"]), c["horizon"])

    def forward(self, x):
        z = self.rev.norm(x)
        tok = self.embed(z.unfold(1, self.patch, self.patch)) + self.pos
        return self.rev.denorm(self.out(self.block(tok).flatten(1)))


class RunningScale:
    """keeps the mean loss of one target; bias corrected like Adam's moments"""

    def __init__(self, beta):
        self.beta, self.m, self.t = beta, 0.0, 0

    def __call__(self, loss):
        self.t += 1
        self.m = self.beta * self.m + (1 - self.beta) * loss.item()
        return loss / (self.m / (1 - self.beta**self.t))


def gauges(c):
    g = torch.Generator().manual_seed(1170)
    n = c["window"] + c["horizon"]
    t = torch.arange(n).float()
    for step in range(1, c["steps"] + 1):
        phase = 6.28 * torch.rand(c["batch"], 1, generator=g)
        amp = 0.5 + torch.rand(c["batch"], 1, generator=g)
        level = 2 + amp * torch.sin(2 * math.pi * t / 24.8 + phase) + 0.05 * torch.randn(c["batch"], n, generator=g)
        flow = torch.relu(level - 1.75) ** 1.5 + 0.02 * torch.randn(c["batch"], n, generator=g).abs()
        if step == 19:
            flow[4] = 0.0  # sluice shut for repairs
        yield step, {"level": level, "flow": flow}


def main(c):
    torch.manual_seed(6)
    models = nn.ModuleDict({k: PatchForecaster(c) for k in ("level", "flow")})
    scales = {k: RunningScale(c["beta"]) for k in models}
    opt = torch.optim.AdamW(models.parameters(), lr=c["lr"])
    for step, batch in gauges(c):
        total, parts = 0.0, {}
        for key, series in batch.items():
            past, future = series[:, : c["window"]], series[:, c["window"] :]
            mae = (models[key](past) - future).abs().mean()
            parts[key] = mae.item()
            total = total + scales[key](mae)
        opt.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(models.parameters(), 1.0)
        opt.step()
        print(f"{step:3d} total {total.item():.6f} " + " ".join(f"{k} {v:.5f}" for k, v in parts.items()))
    print("weights", round(sum(p.sum().item() for p in models.parameters()), 5))


main(CFG)

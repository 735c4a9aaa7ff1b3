"""Butterflies on transects: a student learns from the counts there are, and from an EMA teacher where nobody walked."""
import copy

import numpy as np
import torch
from torch import nn

STEPS, BATCH, SPECIES = 42, 32, 12
rs = np.random.default_rng(411)
LOADING = rs.normal(size=(8, SPECIES)) * 0.5


def walk():
    """Weather and habitat, counts, NaN where the species was not looked for; on rainy weeks nobody walks at all."""
    x = rs.normal(size=(BATCH, 8))
    rate = np.exp(np.clip(x @ LOADING + 0.3, -4, 3))
    y = rs.poisson(rate).astype(np.float32)
    y[rs.random(y.shape) < 0.5] = np.nan
    if rs.random() < 0.1:
        y[:] = np.nan
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.rate = nn.Linear(64, SPECIES)

    def forward(self, x):
        return self.rate(self.body(x))


def poisson_nll(log_rate, y):
    seen = ~torch.isnan(y)
    count = torch.where(seen, y, torch.zeros_like(y))
    each = (log_rate.exp() - count * log_rate) * seen
    return each.sum() / seen.sum().clamp(min=1)        # without a constant: it may well be negative


@torch.no_grad()
def follow(teacher, student, step):
    decay = min(0.98, (1 + step) / (10 + step))
    for a, b in zip(teacher.parameters(), student.parameters()):
        a.lerp_(b, 1 - decay)


def main():
    torch.manual_seed(6)
    student = Counter()
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 21, growth_interval=1000)
    weak = torch.Generator().manual_seed(7)
    for step in range(1, STEPS + 1):
        x, y = walk()
        jitter = x + 0.1 * torch.randn(x.shape, generator=weak)
        with torch.autocast("cpu", dtype=torch.float16):
            out = student(jitter)
        counted = poisson_nll(out.float(), y)
        with torch.no_grad():
            want = teacher(x)
        ramp = 2.0 * min(1.0, step / 30)
        gap = ((out.float() - want) ** 2).mean()
        loss = counted + ramp * gap
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        follow(teacher, student, step)
        # mean of the counts that were written down; a week without a walk has none, which prints nan
        mean = float(np.nan if torch.isnan(y).all() else torch.nanmean(y))
        print(f"{step} loss {loss.item():.6f} counted {counted.item():.6f} mean {mean:.3f} "
              f"scale 2^{int(np.log2(scaler.get_scale()))}", flush=True)
    print(f"{sum(float(p.detach().abs().sum()) for p in student.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()

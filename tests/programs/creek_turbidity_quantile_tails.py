"""Distributional regression of creek turbidity: a skewed-normal density first, the tails' quantiles later."""
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

LEVELS = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95, 0.99])


class Batch(NamedTuple):
    x: Tensor
    y: Tensor       # NaN where the probe was out of the water
    limit: Tensor   # detection limit of the probe, inf for the probes without one


def make_creek(seed: int, hours: int) -> Batch:
    rng = np.random.default_rng(seed)
    rain = rng.gamma(0.4, 2.0, hours)
    flow = np.zeros(hours)
    for t in range(1, hours):
        flow[t] = 0.9 * flow[t - 1] + rain[t]
    season = np.sin(2 * np.pi * np.arange(hours) / 700)
    log_ntu = 0.05 * flow + 0.2 * season + rng.normal(0, 0.02 + 0.01 * np.log1p(flow))
    limit = np.where(rng.random(hours) < 0.3, 1.2, np.inf)
    log_ntu = np.minimum(log_ntu, limit)
    log_ntu[rng.random(hours) < 0.15] = np.nan
    log_ntu[600:648] = np.nan                    # probe was stolen: two whole batches without any target
    x = np.stack([np.log1p(rain), np.log1p(flow), season], 1)
    return Batch(*(torch.tensor(v, dtype=torch.float32) for v in (x, log_ntu, limit)))


class Creek(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.place = nn.Linear(32, 2)
        self.steps = nn.Linear(32, len(LEVELS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        mu, raw = self.place(h).unbind(-1)
        gaps = nn.functional.softplus(self.steps(h))
        quantiles = torch.cumsum(torch.cat([self.steps(h)[:, :1], gaps[:, 1:]], 1), 1)
        return mu, nn.functional.softplus(raw) + 0.01, quantiles


def density_loss(mu: Tensor, sigma: Tensor, b: Batch) -> Tensor:
    """Negative log density where measured below the limit, log survival where censored."""
    keep = ~b.y.isnan()
    y, mu, sigma = b.y[keep], mu[keep], sigma[keep]
    z = (y - mu) / sigma
    exact = 0.5 * z.square() + sigma.log() + 0.5 * math.log(2 * math.pi)
    capped = y >= b.limit[keep]
    censored = -torch.special.log_ndtr(-z)
    return torch.where(capped, censored, exact).mean()


def pinball(quantiles: Tensor, b: Batch) -> Tensor:
    keep = ~b.y.isnan()
    e = b.y[keep, None] - quantiles[keep]
    return torch.maximum(LEVELS * e, (LEVELS - 1) * e).sum(1).mean()


def coverage(quantiles: Tensor, b: Batch) -> float:
    inside = (b.y > quantiles[:, 0]) & (b.y < quantiles[:, 4])
    return (inside & ~b.y.isnan()).sum().item() / max(int((~b.y.isnan()).sum()), 1)


def batches(data: Batch, size: int):
    for i in range(0, len(data.y) - size + 1, size):
        yield Batch(*(v[i:i + size] for v in data))


def main() -> None:
    torch.manual_seed(40)
    model = Creek()
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
    pinned = 0
    for i, b in enumerate(batches(make_creek(4, 1320), 24)):
        head = b.x[:, 1].mean().item()
        if b.y.isnan().all():
            print(f"batch {i:2d} skipped, mean of the targets {b.y.nanmean().item():.1f}", flush=True)
            continue
        mu, sigma, q = model(b.x)
        loss = density_loss(mu, sigma, b)
        if i >= 30:                               # from here on the tails count as well, heavily
            loss = loss + 20 * pinball(q, b)
            pinned += 1
        opt.zero_grad()
        loss.backward()
        opt.step()
        far = (b.limit.max() - mu.max()).item()   # inf whenever a probe without limit is in the batch
        print(f"batch {i:2d} flow {head:.3f} loss {loss.item():+.7f} room {far} covered {coverage(q, b):.3f}", flush=True)
    print(f"{pinned} {sum(p.detach().abs().sum() for p in model.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    main()

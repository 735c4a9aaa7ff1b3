"""Visits of squirrels to a garden feeder: a Hawkes process in which a visit may also deter the next one.

Rate(t) = relu(base(weather) + sum_k a_k sum_{s < t} exp(-b_k (t - s))), a_k of either sign.
"""
from typing import List, NamedTuple

import numpy as np
import torch
from torch import nn


class Day(NamedTuple):
    weather: np.ndarray
    visits: np.ndarray


DECAYS = (0.8, 3.0, 12.0)
LENGTH = 10.0


def simulate(rng: np.random.Generator) -> Day:
    """Thinning. After a visit the feeder is quiet for a while, but now and then a pair comes together."""
    weather = rng.normal(size=3)
    base = float(np.exp(0.9 + 0.3 * weather[0]))
    visits: List[float] = []
    t = 0.0
    while True:
        t += rng.exponential(1.0 / base)
        if t > LENGTH:
            break
        scare = sum(1.0 * np.exp(-1.2 * (t - s)) for s in visits)
        if rng.random() < max(0.0, 1.0 - scare):
            visits.append(t)
            if rng.random() < 0.06:
                t += rng.uniform(0.15, 0.45)
                visits.append(t)
    return Day(weather.astype(np.float32), np.asarray(visits, dtype=np.float32))


class Feeder(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.influence = nn.Parameter(torch.zeros(len(DECAYS)))
        self.register_buffer("decay", torch.tensor(DECAYS))

    def rate(self, weather, at, visits):
        lag = at[:, None] - visits[None, :]
        before = lag > 1e-6
        lag = torch.where(before, lag, torch.zeros_like(lag))
        kernel = torch.exp(-self.decay * lag[..., None]) * before[..., None]
        drive = nn.functional.softplus(self.base(weather)) + kernel.sum(1) @ self.influence
        return torch.relu(drive)

    def log_likelihood(self, day: Day, grid):
        weather, visits = torch.from_numpy(day.weather), torch.from_numpy(day.visits)
        seen = torch.log(self.rate(weather, visits, visits)).sum()
        expected = self.rate(weather, grid, visits).mean() * LENGTH
        return seen - expected


def main() -> None:
    torch.manual_seed(32)
    rng = np.random.default_rng(32)
    days = [d for d in (simulate(rng) for _ in range(120)) if len(d.visits) >= 2]
    grid = (torch.arange(200) + 0.5) * LENGTH / 200
    model = Feeder()
    optimizer = torch.optim.Adam([
        dict(params=model.base.parameters(), lr=5e-3),
        dict(params=[model.influence], lr=4e-2),
    ])
    order = rng.permutation(len(days))
    size, done = 10, 0
    for epoch in range(5):
        for first in range(0, len(order) - size + 1, size):
            optimizer.zero_grad()
            score = torch.stack([model.log_likelihood(days[i], grid) for i in order[first:first + size]])
            loss = -score.mean()
            loss.backward()
            optimizer.step()
            done += 1
            a = " ".join(f"{v:+.4f}" for v in model.influence.tolist())
            print(f"{epoch} {done:3d} nll {loss.item():.6f} influence {a}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()

"""Forecast of barges per hour at a canal lock, with a per-tensor secant (Barzilai-like) optimizer of our own."""
import sys

import numpy as np
import torch
from torch import nn


class SecantDescent(torch.optim.Optimizer):
    """x <- x - g / c, with c the curvature along the last displacement, smoothed and bounded.

    For every tensor the curvature is |s.y| / s.s, s being the last displacement and y the change of the
    gradient; a running mean keeps mini-batch noise down.
    """

    def __init__(self, params, first_rate=0.05, smooth=0.9, bounds=(2.0, 200.0)):
        super().__init__(params, dict(first_rate=first_rate, smooth=smooth, bounds=bounds))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            low, high = group["bounds"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["curvature"] = torch.tensor(1.0 / group["first_rate"])
                else:
                    s, y = state["moved"], p.grad - state["grad"]
                    seen = (s * y).sum().abs() / (s * s).sum()
                    seen = seen.clamp(low, high)
                    state["curvature"].mul_(group["smooth"]).add_(seen, alpha=1 - group["smooth"])
                move = -p.grad / state["curvature"]
                p.add_(move)
                state["moved"], state["grad"] = move, p.grad.clone()
        return loss


class LockModel(nn.Module):
    """A common part, and a correction each for working days, Sundays and feast days."""

    def __init__(self, n_in, width=24):
        super().__init__()
        self.common = nn.Sequential(nn.Linear(n_in, width), nn.Tanh())
        self.out = nn.Linear(width, 1)
        self.by_day = nn.ModuleDict({k: nn.Linear(width, 1) for k in ("work", "sunday", "feast")})

    def forward(self, x, flags):
        h = self.common(x)
        y = self.out(h)
        for k, head in enumerate(self.by_day.values()):
            y = y + flags[:, k:k + 1] * head(h)
        return y.squeeze(1)


def lock_book(rng, days=80):
    """One row for each third hour: features, kind of day, log of the barges."""
    rows = []
    for d in range(days):
        feast = rng.random() < 0.12
        kind = 2 if feast else (1 if d % 7 == 6 else 0)
        water = rng.normal()
        for hour in range(0, 24, 3):
            tide = np.sin(2 * np.pi * (hour + d * 0.8) / 12.4)
            day = np.cos(2 * np.pi * (hour - 13) / 24)
            level = 1.2 + 0.8 * day + 0.3 * tide - 0.2 * water - (0, 0.7, 1.1)[kind] * (1 + day) / 2
            rows.append((tide, day, water, hour / 24, kind, level + 0.15 * rng.normal()))
    return np.array(rows, dtype=np.float32)


def draw(rng, book, n):
    part = torch.from_numpy(book[rng.permutation(len(book))[:n]])
    flags = torch.nn.functional.one_hot(part[:, 4].long(), 3).float()
    return part[:, :4], flags, part[:, 5]


def main(steps=60, n=32):
    torch.manual_seed(6)
    rng = np.random.default_rng(60)
    book = lock_book(rng)
    model = LockModel(4)
    opt = SecantDescent(model.parameters())
    for i in range(steps):
        x, flags, y = draw(rng, book, n)
        loss = (model(x, flags) - y).square().mean()
        model.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        days = "/".join(str(int(v)) for v in flags.sum(0))
        sys.stdout.write(f"{i + 1:03d} mse={loss.item():.8f} days={days}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{sum(float(p.detach().abs().sum()) for p in model.parameters()):.6f}\n")


if __name__ == "__main__":
    main()

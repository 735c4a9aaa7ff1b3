"""Replicating a bond index with a few liquid issues.

The desk writes objectives as they write formulas:  Tracking() + 0.02 * Turnover() - 1e-3 * Entropy()
so the terms are small objects with operators.
"""
from __future__ import annotations

import torch
from torch import nn

ISSUES = 8


class Objective:
    def __call__(self, ctx) -> torch.Tensor:
        raise NotImplementedError

    def __add__(self, other):
        return Both(self, other)

    def __sub__(self, other):
        return Both(self, -1.0 * other)

    def __rmul__(self, k):
        return Scaled(k, self)

    @property
    def label(self):
        return type(self).__name__.lower()


class Both(Objective):
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __call__(self, ctx):
        return self.a(ctx) + self.b(ctx)

    @property
    def label(self):
        return f"{self.a.label} + {self.b.label}"


class Scaled(Objective):
    def __init__(self, k, inner):
        self.k, self.inner = k, inner

    def __call__(self, ctx):
        return self.k * self.inner(ctx)

    @property
    def label(self):
        return f"{self.k:g} {self.inner.label}"


class Tracking(Objective):
    """Root of the summed squared miss over the quotes of the day."""

    def __call__(self, ctx):
        miss = ctx.portfolio - ctx.index
        return (miss * miss).sum().sqrt()


class Turnover(Objective):
    def __call__(self, ctx):
        return (ctx.weights - ctx.yesterday).abs().sum()


class Entropy(Objective):
    def __call__(self, ctx):
        return -(ctx.weights * ctx.weights.log()).sum()


class Day:
    """Lazy: everything is a property of the parameters and of the day's quotes."""

    def __init__(self, desk, moves, index):
        self.desk, self.moves, self.index = desk, moves, index
        self.yesterday = desk.held.clone()

    @property
    def weights(self):
        return torch.softmax(self.desk.tilt, dim=0)

    @property
    def portfolio(self):
        return self.moves @ self.weights


class Desk(nn.Module):
    def __init__(self):
        super().__init__()
        self.tilt = nn.Parameter(0.1 * torch.randn(ISSUES))
        self.register_buffer("held", torch.full((ISSUES,), 1 / ISSUES))


def calendar(days, gen):
    truth = torch.softmax(torch.arange(ISSUES).float() / 2, 0)
    for day in range(1, days + 1):
        moves = 0.4 * torch.randn(10, ISSUES, generator=gen)
        if day == 26:                       # 26 December, the feed repeats the close: no issue moves
            moves = torch.zeros(10, ISSUES)
        yield day, moves, moves @ truth


def main():
    torch.manual_seed(1694)
    desk = Desk()
    goal = Tracking() + 0.02 * Turnover() - 1e-3 * Entropy()
    print("minimise", goal.label)
    opt = torch.optim.Adam(desk.parameters(), lr=0.06)
    for day, moves, index in calendar(45, torch.Generator().manual_seed(2)):
        ctx = Day(desk, moves, index)
        cost = goal(ctx)
        opt.zero_grad()
        cost.backward()
        opt.step()
        if day % 2 == 0:
            print(f"day {day:2d}  cost {cost.item():.7f}")
        if day % 5 == 0:
            desk.held.copy_(ctx.weights.detach())
    print(f"tilts sum to {desk.tilt.double().sum().item():.8f}")


if __name__ == "__main__":
    main()

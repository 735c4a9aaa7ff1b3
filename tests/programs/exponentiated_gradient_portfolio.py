# Online portfolio by exponentiated gradient (Helmbold et al. 1998), on a fund's own price table.
import csv
import random
from io import StringIO

import torch

TICKERS = ["BREW", "COPR", "DOCK", "FARM", "GRID", "HELI", "RAIL"]


def price_table(days=240, seed=424):
    rng = random.Random(seed)
    prices = {t: 20 + 60 * rng.random() for t in TICKERS}
    drift = {t: rng.uniform(-0.0005, 0.0012) for t in TICKERS}
    lines = ["day," + ",".join(TICKERS)]
    for day in range(days):
        for t in TICKERS:
            prices[t] *= 1 + drift[t] + rng.gauss(0, 0.012)
        shown = {t: f"{p:.2f}" for t, p in prices.items()}
        if day == 137:
            shown["HELI"] = "0.01"               # trading was halted, the feed filled in one tick
        lines.append(f"{day}," + ",".join(shown[t] for t in TICKERS))
    return StringIO("\n".join(lines))


def relatives(table):
    rows = [[float(r[t]) for t in TICKERS] for r in csv.DictReader(table)]
    p = torch.tensor(rows)
    return p[1:] / p[:-1] - 1


class ExponentiatedGradient(torch.optim.Optimizer):
    """Keeps every parameter on the simplex: w <- w exp(-eta g) / sum."""

    def __init__(self, params, eta=2.0):
        super().__init__(params, dict(eta=eta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    grown = w * torch.exp(-group["eta"] * w.grad)
                    w.copy_(grown / grown.sum(-1, keepdim=True))


class Books(torch.nn.Module):
    """Two books with different appetite for risk, each a point of the simplex."""

    def __init__(self, aversion=(2.0, 12.0)):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.full((len(aversion), len(TICKERS)), 1 / len(TICKERS)))
        self.register_buffer("aversion", torch.tensor(aversion))

    def forward(self, r):
        daily = r @ self.weights.T
        return daily.mean(0), (daily - daily.mean(0)).abs().mean(0)


def regret(mean, deviation, aversion):
    return (aversion * 0.02 * deviation - mean).sum()


returns = relatives(price_table())
books = Books()
opt = ExponentiatedGradient(books.parameters())
wealth = torch.ones(2)
for week, block in enumerate(returns.split(5), 1):
    with torch.no_grad():
        gained = (1 + block.clamp(-0.2, 0.2) @ books.weights.T).prod(0)
    opt.zero_grad()
    loss = regret(*books(block), books.aversion)
    loss.backward()
    opt.step()
    wealth = wealth * gained
    print(f"week {week:2d} regret {loss.item():.6f} wealth {wealth[0].item():.4f} {wealth[1].item():.4f}")
print("finite", int(books.weights.isfinite().all()))

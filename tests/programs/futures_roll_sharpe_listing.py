"""Direct Sharpe optimisation of a futures allocation net.

Contracts list at different dates: before that their returns are NaN in the panel, as the
vendor delivers them. Costs are switched on once the allocation has warmed up.
"""
import numpy as np
import torch
import torch.nn as nn

DAYS, ASSETS, LOOKBACK, WINDOW = 520, 10, 20, 60
STEPS, COSTS_FROM = 48, 24


def vendor_panel(seed=101):
    rng = np.random.default_rng(seed)
    market = 0.006 * rng.standard_normal(DAYS)
    drift = rng.uniform(-4e-4, 9e-4, ASSETS)
    returns = drift + market[:, None] * rng.uniform(0.2, 1.2, ASSETS) + 0.01 * rng.standard_normal((DAYS, ASSETS))
    listing = np.sort(rng.integers(0, 380, ASSETS))
    listing[:3] = 0
    for k, first in enumerate(listing):
        returns[:first, k] = np.nan
    return torch.tensor(returns, dtype=torch.float32)


class Allocator(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = nn.LSTM(3, hidden, batch_first=True)
        self.score = nn.Linear(hidden, 1)

    def forward(self, features, tradable):
        days, assets, steps, width = features.shape
        out, _ = self.rnn(features.reshape(days * assets, steps, width))
        score = self.score(out[:, -1]).view(days, assets)
        return torch.softmax(score.masked_fill(~tradable, -torch.inf), dim=-1)


def features_for(panel, days):
    rows = []
    for d in days:
        past = panel[d - LOOKBACK:d].T                      # assets x lookback, may hold NaN
        known = ~past.isnan()
        clean = torch.where(known, past, torch.zeros(()))
        vol = clean.std(dim=1, keepdim=True).expand_as(clean)
        rows.append(torch.stack([100 * clean, 100 * vol, known.float()], dim=-1))
    return torch.stack(rows)


def portfolio(weights, returns, tradable, cost):
    gross = (weights * torch.where(tradable, returns, torch.zeros(()))).sum(1)
    turnover = (weights[1:] - weights[:-1]).abs().sum(1)
    return gross - cost * torch.cat([torch.zeros(1), turnover])


def sharpe(series):
    return np.sqrt(252) * series.mean() / series.std()


def main():
    torch.manual_seed(101)
    panel = vendor_panel()
    net = Allocator()
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
    picker = np.random.default_rng(7)
    for step in range(1, STEPS + 1):
        start = int(picker.integers(LOOKBACK, DAYS - WINDOW))
        days = range(start, start + WINDOW)
        realised = panel[start:start + WINDOW]
        tradable = ~panel[start - 1:start + WINDOW - 1].isnan()
        weights = net(features_for(panel, days), tradable)
        cost = 0.0 if step < COSTS_FROM else 0.004
        pnl = portfolio(weights, realised, tradable, cost)
        loss = -sharpe(pnl)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            worst = realised.mean(0).min().item()           # NaN while anything is unlisted
            entropy = torch.special.entr(weights).sum(1).mean().item()
        print(f"step {step:2d}  loss {loss.item():+.5f}  entropy {entropy:.4f}  worst asset {worst:+.5f}", flush=True)
    print(f"weights {sum(p.abs().sum() for p in net.parameters()).item():.4f}")


if __name__ == "__main__":
    main()

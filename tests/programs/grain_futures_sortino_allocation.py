"""
Long-only allocation over six grain futures, trained on the negative Sortino ratio of rolling windows.

Parameters are kept as a dict and passed through torch.func; the update rule is our own (momentum with decoupled decay).
"""
import math

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

NAMES = ["wheat", "maize", "oats", "rice", "barley", "soy"]
LOOKBACK, WINDOW, TRADING_YEAR = 10, 15, 252


def simulate_prices(n_days, seed):
    """Correlated daily returns with a slowly moving drift, a calm period and the export-ban rally of the spring."""
    g = torch.Generator().manual_seed(seed)
    k = len(NAMES)
    common = 0.006 * torch.randn(n_days, 1, generator=g)
    own = 0.007 * torch.randn(n_days, k, generator=g)
    t = torch.arange(n_days)[:, None]
    drift = 0.0012 * torch.sin(t / 37.0 + torch.arange(k)[None] * 1.1)
    r = common + own + drift
    ban = slice(LOOKBACK + 21 * WINDOW - 2, LOOKBACK + 22 * WINDOW + 2)
    r[ban] = 0.012 + r[ban].abs() * 0.6          # limit-up days, one after the other
    return r


class Allocator(nn.Module):
    def __init__(self, k, hidden=24):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2 * k, hidden), nn.Tanh())
        self.score = nn.Linear(hidden, k)
        self.temperature = nn.Parameter(torch.zeros(()))

    def forward(self, momentum, vol):
        x = torch.cat([momentum * 100.0, vol * 100.0], dim=-1)
        return torch.softmax(self.score(self.features(x)) * torch.exp(self.temperature), dim=-1)


def rolling_inputs(r, start):
    mom, vol, nxt = [], [], []
    for d in range(start, start + WINDOW):
        past = r[d - LOOKBACK:d]
        mom.append(past.mean(0))
        vol.append(past.std(0))
        nxt.append(r[d])
    return torch.stack(mom), torch.stack(vol), torch.stack(nxt)


def sortino(pnl, mar=0.0, floor=2e-3):
    shortfall = (mar - pnl) * (pnl < mar)
    downside = torch.sqrt(shortfall.square().mean())
    return (pnl.mean() - mar) / (downside + floor) * math.sqrt(TRADING_YEAR)


def make_objective(model, cost=5e-4):
    def objective(params, mom, vol, nxt):
        w = functional_call(model, params, (mom, vol))
        turnover = (w[1:] - w[:-1]).abs().sum(dim=1).mean()
        pnl = (w * nxt).sum(dim=1)
        return -torch.tanh(sortino(pnl) / 40.0) + cost * turnover
    return objective


class MomentumRule:
    """v <- b v + g ;  p <- (1 - lr*wd) p - lr v"""

    def __init__(self, params, lr=0.15, beta=0.8, decay=1e-3):
        self.params, self.lr, self.beta, self.decay = params, lr, beta, decay
        self.velocity = {n: torch.zeros_like(p) for n, p in params.items()}

    @torch.no_grad()
    def step(self, grads):
        for name, p in self.params.items():
            v = self.velocity[name]
            v.mul_(self.beta).add_(grads[name])
            p.mul_(1.0 - self.lr * self.decay).sub_(self.lr * v)


def main():
    torch.manual_seed(31)
    windows = 36
    returns = simulate_prices(LOOKBACK + WINDOW * windows, seed=8)
    model = Allocator(len(NAMES))
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    rule = MomentumRule(params)
    value_and_slope = grad_and_value(make_objective(model))
    for step in range(1, windows + 1):
        mom, vol, nxt = rolling_inputs(returns, LOOKBACK + (step - 1) * WINDOW)
        grads, loss = value_and_slope(params, mom, vol, nxt)
        rule.step(grads)
        print(f"window {step:02d} objective {loss.item():+.8f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in params.values()):.6f}", flush=True)


if __name__ == "__main__":
    main()

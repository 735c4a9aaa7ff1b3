"""Conditional neural process for snow depth along a line of stakes.

Each winter day is a task: some stakes could be read (context), the others are to be predicted (target).
How many can be read depends on the visibility of that day.
"""
import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--days", type=int, default=48)
parser.add_argument("--stakes", type=int, default=24)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=1956)
parser.add_argument("--every", type=int, default=1)


class DeepSet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, x, y):
        return self.phi(torch.stack([x, y], -1)).mean(dim=0)


class SnowCNP(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.encoder = DeepSet(hidden)
        self.decoder = nn.Sequential(nn.Linear(hidden + 1, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, xc, yc, xt):
        r = self.encoder(xc, yc)
        h = torch.cat([r.expand(len(xt), -1), xt[:, None]], -1)
        mu, raw = self.decoder(h).unbind(-1)
        return mu, 0.02 + 0.98 * nn.functional.softplus(raw)


def visibility(days, seed):
    """Fraction of stakes seen, a slow random walk with one whiteout in January."""
    g = torch.Generator().manual_seed(seed)
    walk = torch.cumsum(0.08 * torch.randn(days, generator=g), 0)
    clear = torch.sigmoid(walk + 0.5)
    clear[26] = 0.004
    return clear.tolist()


def winter(opts):
    g = torch.Generator().manual_seed(opts.seed)
    x = torch.linspace(-1, 1, opts.stakes)
    base = 0.6 + 0.3 * torch.sin(3 * x)
    for seen in visibility(opts.days, opts.seed + 4):
        base = base + 0.03 * torch.randn((), generator=g) + 0.02 * torch.cos(5 * x)
        y = base + 0.04 * torch.randn(opts.stakes, generator=g)
        order = torch.randperm(opts.stakes, generator=g)
        n = int(round(seen * opts.stakes))
        n = min(n, opts.stakes - 4)          # keep something to predict
        yield x[order[:n]], y[order[:n]], x[order[n:]], y[order[n:]]


def main():
    opts = parser.parse_args()
    torch.manual_seed(opts.seed)
    net = SnowCNP()
    opt = torch.optim.Adam(net.parameters(), lr=opts.lr)
    ema = {k: v.clone() for k, v in net.state_dict().items()}
    for day, (xc, yc, xt, yt) in enumerate(winter(opts), 1):
        mu, sigma = net(xc, yc, xt)
        nll = (sigma.log() + 0.5 * ((yt - mu) / sigma) ** 2).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        with torch.no_grad():
            for k, v in net.state_dict().items():
                ema[k].lerp_(v, 0.05)
        if day % opts.every == 0:
            print(f"day {day:2d} context {len(xc):2d} target {len(xt):2d} nll {nll.item():.6f}")
    print("weights", sum(p.double().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()

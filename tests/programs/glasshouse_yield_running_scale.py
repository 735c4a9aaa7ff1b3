"""Yield of glasshouse compartments from climate means; targets are standardised by a running scale.

Compartments report when they harvest. A batch is what came in that week.
"""
import torch
import torch.nn as nn


class RunningScale:
    """Exponential mean and variance of the targets. Kept out of the module: it is not part of the exported model."""

    def __init__(self, keep=0.9):
        self.keep = keep
        self.mean = None
        self.var = None

    def observe(self, y):
        n = y.numel()
        centre = y.sum() / n
        spread = (y - centre).pow(2).sum() / (n - 1)
        if self.mean is None:
            self.mean, self.var = centre, spread
        else:
            self.mean = self.keep * self.mean + (1 - self.keep) * centre
            self.var = self.keep * self.var + (1 - self.keep) * spread

    def __call__(self, y):
        return (y - self.mean) / (self.var + 1e-4).sqrt()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.body(x)


def build(width=20, depth=2):
    return nn.Sequential(nn.Linear(6, width), *[Residual(width) for _ in range(depth)], nn.Linear(width, 1))


# number of compartments harvested in each week of the season
HARVESTS = [4, 6, 8, 9, 12, 12, 11, 10, 12, 9, 8, 9, 12, 12, 10, 7, 5, 3, 1, 6, 8, 9, 11, 12, 12, 10, 9, 8, 8, 5, 3, 2]


def season(seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(6, generator=g)
    for week, n in enumerate(HARVESTS, 1):
        climate = torch.randn(n, 6, generator=g)
        kilos = 38 + 5 * (climate @ truth) + 0.6 * week + torch.randn(n, generator=g)
        yield week, climate, kilos


def huber(pred, target, delta=1.5):
    r = (pred - target).abs()
    return torch.where(r < delta, 0.5 * r * r, delta * (r - 0.5 * delta)).mean()


def main():
    torch.manual_seed(300)
    model = build()
    scale = RunningScale()
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    for week, climate, kilos in season(41):
        scale.observe(kilos)
        pred = model(climate).squeeze(-1)
        loss = huber(pred, scale(kilos))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"week {week:02d} harvested {len(kilos):2d} loss {loss.item():.6f}")
    print("sum", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

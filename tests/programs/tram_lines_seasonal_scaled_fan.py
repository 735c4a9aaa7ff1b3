"""Boardings per tram line, the next 1..8 half-hours, as a fan of quantiles.

Scaling as in the M competitions: the pinball loss of each line is divided by the mean absolute error
of the seasonal naive forecast on the input window, so that a busy line does not drown the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

WINDOW, SEASON, HORIZONS, QUANTILES = 48, 12, 8, (0.1, 0.5, 0.9)


# ------------------------------------------------------------- data
class LineHistory:
    def __init__(self, number, level, days, seed, closed=()):
        self.number, self.level, self.seed, self.closed = number, level, seed, closed
        self.length = days * SEASON

    @cached_property
    def boardings(self):
        g = torch.Generator().manual_seed(self.seed)
        t = torch.arange(self.length)
        profile = 1 + 0.7 * torch.sin(2 * torch.pi * t / SEASON) + 0.2 * torch.sin(4 * torch.pi * t / SEASON)
        y = torch.poisson(self.level * profile, generator=g)
        for a, b in self.closed:  # track works, replacement buses are counted elsewhere
            y[a:b] = 0
        return y

    @cached_property
    def calendar(self):
        t = torch.arange(self.length) % SEASON
        return torch.stack([torch.sin(2 * torch.pi * t / SEASON), torch.cos(2 * torch.pi * t / SEASON)], -1)


@dataclass
class Window:
    line: LineHistory
    end: int

    @property
    def past(self):
        return self.line.boardings[self.end - WINDOW : self.end]

    @property
    def future(self):
        return self.line.boardings[self.end : self.end + HORIZONS]

    @property
    def features(self):
        past = torch.log1p(self.past)
        return torch.cat([past.unsqueeze(-1), self.line.calendar[self.end - WINDOW : self.end]], -1)

    @property
    def naive_error(self):
        return (self.past[SEASON:] - self.past[:-SEASON]).abs().mean()


class Depot(Dataset):
    def __init__(self, lines, stride):
        self.windows = [Window(one, e) for one in lines for e in range(WINDOW, one.length - HORIZONS, stride)]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        return self.windows[i]


class Shuffled(Sampler):
    """One pass in a fixed random order."""

    def __init__(self, depot, seed):
        self.depot, self.seed = depot, seed

    def __len__(self):
        return len(self.depot)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(len(self.depot), generator=g).tolist())


def collate(windows):
    return {
        "x": torch.stack([w.features for w in windows]),
        "y": torch.stack([w.future for w in windows]),
        "scale": torch.stack([w.naive_error for w in windows]),
        "line": torch.tensor([w.line.number for w in windows]),
    }


# ------------------------------------------------------------- model
class FanHead(nn.Module):
    """Median plus positive gaps, so that the quantiles do not cross."""

    def __init__(self, d):
        super().__init__()
        self.out = nn.Linear(d, HORIZONS * len(QUANTILES))

    def forward(self, h, level):
        raw = self.out(h).unflatten(-1, (HORIZONS, len(QUANTILES)))
        low, mid, high = raw.unbind(-1)
        fan = torch.stack([mid - nn.functional.softplus(low), mid, mid + nn.functional.softplus(high)], -1)
        return level[:, None, None] * (1 + fan)


class TramForecaster(nn.Module):
    def __init__(self, lines, d=24):
        super().__init__()
        self.line = nn.Embedding(lines, d)
        self.gru = nn.GRU(3, d, batch_first=True)
        self.fan = FanHead(d)

    def forward(self, batch):
        _, h = self.gru(batch["x"])
        level = batch["x"][..., 0].expm1().mean(1) + 1.0
        return self.fan(h[0] + self.line(batch["line"]), level)


# ------------------------------------------------------------- loss
class Pinball(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("q", torch.tensor(QUANTILES))

    def forward(self, fan, y):
        diff = y.unsqueeze(-1) - fan
        return torch.maximum(self.q * diff, (self.q - 1) * diff).sum(-1)  # (batch, horizon)


class SeasonallyScaled(nn.Module):
    def __init__(self, inner: nn.Module, horizon_weight: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.inner = inner
        self.register_buffer("w", horizon_weight(torch.arange(1, HORIZONS + 1).float()))

    def forward(self, fan, batch):
        per_line = (self.inner(fan, batch["y"]) * self.w).mean(1)
        relative = per_line / batch["scale"]
        return relative.mean()


# ------------------------------------------------------------- trainer
class Callback:
    def step_end(self, trainer, loss, fan, batch): ...


class Coverage(Callback):
    def __init__(self):
        self.hit, self.n = 0, 0

    def step_end(self, trainer, loss, fan, batch):
        inside = (batch["y"] >= fan[..., 0]) & (batch["y"] <= fan[..., -1])
        self.hit, self.n = self.hit + int(inside.sum()), self.n + inside.numel()


class Board(Callback):
    def step_end(self, trainer, loss, fan, batch):
        print(f"step {trainer.step:2d}  scaled pinball {loss:.6f}")


class Trainer:
    def __init__(self, model, criterion, callbacks, lr=8e-3, steps=42):
        self.model, self.criterion, self.callbacks, self.steps, self.step = model, criterion, callbacks, steps, 0
        self.opt = torch.optim.RMSprop(model.parameters(), lr=lr, alpha=0.95)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps, eta_min=lr / 20)

    def fit(self, loader):
        for batch in loader:
            if self.step == self.steps:
                break
            self.step += 1
            fan = self.model(batch)
            loss = self.criterion(fan, batch)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            for cb in self.callbacks:
                cb.step_end(self, loss.item(), fan.detach(), batch)


def main():
    torch.manual_seed(6)
    lines = [LineHistory(i, 4.0 + 9 * i, days=40, seed=50 + i) for i in range(6)]
    lines[2].closed = ((200, 262),)
    depot = Depot(lines, stride=9)
    loader = DataLoader(depot, batch_sampler=BatchSampler(Shuffled(depot, seed=70), 6, True), collate_fn=collate)
    model = TramForecaster(len(lines))
    coverage = Coverage()
    Trainer(model, SeasonallyScaled(Pinball(), lambda h: h**-0.5), [coverage, Board()]).fit(loader)
    print(f"inside the fan {coverage.hit} of {coverage.n}")
    print(f"weights {sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

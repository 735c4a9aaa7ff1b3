import math

import torch
from torch import nn


def sensor_days(n, gen):
    """Five-minute readings of a glucose sensor in mmol/l, meals as bumps."""
    t = torch.arange(n) * 5 / 60
    level = 6.5 + 0.8 * torch.sin(t / 3.8)
    for meal in (7.5, 12.5, 19.0, 31.5, 36.0, 43.0):
        level = level + 2.6 * torch.exp(-((t - meal - 0.8) / 0.9) ** 2)
    return level + 0.12 * torch.randn(n, generator=gen)


class Forecaster(nn.Module):
    """Half an hour ahead from the last two hours."""

    def __init__(self, history=24):
        super().__init__()
        self.weigh = nn.Linear(history, 1)
        nn.init.zeros_(self.weigh.weight)

    def forward(self, x):
        return x[:, -1:] + self.weigh(x)


class Restarts:
    def __init__(self, optimizer, peak, floor, period, factor):
        self.optimizer, self.peak, self.floor = optimizer, peak, floor
        self.period, self.factor, self.t = period, factor, 0
        self.apply()

    def apply(self):
        cycle, inside = divmod(self.t, self.period)
        high = self.peak * self.factor ** cycle
        lr = self.floor + 0.5 * (high - self.floor) * (1 + math.cos(math.pi * inside / self.period))
        for g in self.optimizer.param_groups:
            g["lr"] = lr
        return lr

    def step(self):
        self.t += 1
        return self.apply()


def fit(steps=40, history=24, ahead=6):
    gen = torch.Generator().manual_seed(50)
    torch.manual_seed(51)
    series = sensor_days(576, gen) - 7.0
    windows = series.unfold(0, history + ahead, 1)
    model = Forecaster(history)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    restarts = Restarts(optimizer, peak=0.02, floor=1e-4, period=8, factor=2.2)
    for step in range(1, steps + 1):
        rows = windows[torch.randint(0, len(windows), (64,), generator=gen)]
        x, y = rows[:, :history], rows[:, -1:]
        rate = optimizer.param_groups[0]["lr"]
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        restarts.step()
        print("step %d rate %.5f loss %.6g" % (step, rate, loss.item()))
    return model


net = fit()
print("sum of absolute weights %.6g" % sum(p.detach().abs().sum().item() for p in net.parameters()))

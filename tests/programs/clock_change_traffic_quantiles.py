# quantiles of tomorrow's hourly traffic at one counting loop, from the profile of the day before
import datetime as dt

import numpy as np
import torch
from torch import nn

QUANTILES = (0.1, 0.5, 0.9)
rs = np.random.RandomState(4)
torch.manual_seed(4)


def is_long_day(day):
    """the last Sunday of October has 25 hours"""
    return day.month == 10 and day.weekday() == 6 and day.day >= 25


def is_short_day(day):
    """and that of March has 23"""
    return day.month == 3 and day.weekday() == 6 and day.day >= 25


def export_of_week(first_day):
    """seven days as the control centre exports them: one number per hour that has passed"""
    hours, weekend = [], []
    for k in range(7):
        day = first_day + dt.timedelta(days=k)
        clock = list(range(24))
        if is_long_day(day):
            clock.insert(3, 2)
        if is_short_day(day):
            clock.remove(2)
        level = 0.6 if day.weekday() >= 5 else 1.0
        shape = [120 * level * (1 + np.sin((h - 7) / 24 * 2 * np.pi)) + 15 for h in clock]
        hours += list(rs.poisson(shape))
        weekend.append(float(day.weekday() >= 5))
    return torch.tensor(hours, dtype=torch.float32), torch.tensor(weekend)


class QuantileProfile(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(25, 40), nn.SiLU(), nn.Linear(40, 24 * len(QUANTILES)))

    def forward(self, profile, weekend):
        raw = self.net(torch.cat([profile, weekend[:, None]], 1)).view(-1, 24, len(QUANTILES))
        low, gaps = raw[..., :1], nn.functional.softplus(raw[..., 1:])
        return torch.cat([low, gaps], -1).cumsum(-1)


def pinball(pred, target):
    tau = torch.tensor(QUANTILES)
    miss = target[..., None] - pred
    return torch.maximum(tau * miss, (tau - 1) * miss).mean()


def run(weeks=40):
    model = QuantileProfile()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    start = dt.date(2022, 5, 30)
    for m in range(1, weeks + 1):
        flow, weekend = export_of_week(start)
        profile = flow.view(-1, 24) / 100
        loss = pinball(model(profile[:-1], weekend[1:]), profile[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{m:2d} {start:%d %b %Y} pinball {loss.item():.5f}")
        start += dt.timedelta(weeks=1)
    print("weights, sum of squares", round(float(sum(p.detach().pow(2).sum() for p in model.parameters())), 4))


run()

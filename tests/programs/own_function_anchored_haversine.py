"""Correct the dead reckoning of small ferries: learn the drift, loss is the great-circle distance in nautical miles.

The arc is its own autograd.Function: forward as the manuals write it, derivative by hand (saves memory on long voyages).
"""
from dataclasses import dataclass

import torch
from torch import nn

NM_PER_RADIAN = 3437.7468


class Arc(torch.autograd.Function):
    """a (haversine) -> central angle, 2 asin(sqrt(a))"""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return 2.0 * torch.asin(torch.sqrt(a))

    @staticmethod
    def backward(ctx, upstream):
        (a,) = ctx.saved_tensors
        return upstream / torch.sqrt(a * (1.0 - a))


def distance(lat1, lon1, lat2, lon2):
    s = torch.sin((lat2 - lat1) / 2) ** 2
    t = torch.cos(lat1) * torch.cos(lat2) * torch.sin((lon2 - lon1) / 2) ** 2
    angle = Arc.apply(s + t)
    return angle * NM_PER_RADIAN


@dataclass(frozen=True)
class Legs:
    start: torch.Tensor    # radians, lat and lon
    end: torch.Tensor
    hours: torch.Tensor
    wind: torch.Tensor
    speed: torch.Tensor    # through the water, radians per hour

    def __getitem__(self, i):
        return Legs(*(getattr(self, f)[i] for f in self.__dataclass_fields__))


class Drift(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 2))

    def forward(self, legs):
        per_hour = legs.speed + 2e-3 * self.net(legs.wind)
        return legs.start + per_hour * legs.hours.unsqueeze(-1)


def logbook(n, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.stack([0.95 + 0.02 * torch.rand(n, generator=g), 0.18 + 0.05 * torch.rand(n, generator=g)], 1)
    hours = torch.randint(1, 6, (n,), generator=g).float()
    wind = torch.randn(n, 3, generator=g)
    speed = 2e-3 * torch.randn(n, 2, generator=g)
    mix = torch.randn(3, 2, generator=g)
    hours[8 * 20 + 3] = 0.0          # two entries within the hour: the ferry lay at anchor
    end = start + (speed + 1e-3 * (wind @ mix) + 1e-4 * torch.randn(n, 2, generator=g)) * hours[:, None]
    return Legs(start, end, hours, wind, speed)


def main():
    torch.manual_seed(64)
    torch.set_num_threads(1)
    legs, model = logbook(8 * 36, seed=2), Drift()
    opt = torch.optim.RMSprop(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 36)
    for watch in range(36):
        part = legs[slice(8 * watch, 8 * watch + 8)]
        guess = model(part)
        miles = distance(guess[:, 0], guess[:, 1], part.end[:, 0], part.end[:, 1])
        loss = miles.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"watch {watch:2d}: off by {loss.item():.5f} nm")
    print("weights", round(float(sum(p.detach().sum() for p in model.parameters())), 6))


main()

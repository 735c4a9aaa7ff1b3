"""Peak particle velocity of quarry blasts from scaled distance (the usual attenuation law).

Readings are on a share that drops the connection now and then, so the train step is wrapped
in @retry; it is timed too, as the share is slow.
"""
import functools
import math
import time

import torch
from torch import nn


class ShareGone(OSError):
    pass


def retry(times, on=(OSError,)):
    def deco(fn):
        @functools.wraps(fn)
        def inner(*a, **kw):
            for left in reversed(range(times)):
                try:
                    return fn(*a, **kw)
                except on:
                    if not left:
                        raise
        return inner
    return deco


def timed(fn):
    spent = []

    @functools.wraps(fn)
    def inner(*a, **kw):
        t = time.perf_counter()
        try:
            return fn(*a, **kw)
        finally:
            spent.append(time.perf_counter() - t)
    inner.spent = spent
    return inner


class Share:
    """Blast rows: seismograph and shot positions (m), charge per delay (kg), log PPV."""

    def __init__(self, blasts=36, stations=14):
        g = torch.Generator().manual_seed(88)
        self.reads = 0
        self.shot = torch.rand(blasts, 2, generator=g).mul(400).round()
        self.station = torch.rand(blasts, stations, 2, generator=g).mul(900).round() + 500
        # day 14: unit 3 was left on the bench and lists the position of the shot
        self.station[14, 3] = self.shot[14]
        self.charge = 20 + 180 * torch.rand(blasts, generator=g)
        d = (self.station - self.shot[:, None]).norm(dim=-1).clamp(min=30)
        self.ppv = 6.5 - 1.6 * torch.log(d / self.charge.sqrt()[:, None])
        self.ppv += 0.1 * torch.randn(self.ppv.shape, generator=g)

    def read(self, i):
        self.reads += 1
        if self.reads % 7 == 0:
            raise ShareGone(f"read {self.reads}: transport endpoint is not connected")
        return self.shot[i], self.station[i], self.charge[i], self.ppv[i]


class Attenuation(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(3.0))
        self.beta = nn.Parameter(torch.tensor(-1.0))
        self.site = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, shot, station, charge):
        d = torch.hypot(*(station - shot).unbind(-1))
        scaled = d / math.sqrt(charge)
        bearing = (station - shot) / 1000.0
        return self.k + self.beta * torch.log(scaled) + self.site(bearing).squeeze(-1)


def build():
    torch.manual_seed(88)
    model = Attenuation()
    return model, torch.optim.Adam(model.parameters(), lr=5e-2)


@timed
@retry(3)
def train_step(share, i, model, opt):
    shot, station, charge, ppv = share.read(i)
    opt.zero_grad()
    loss = (model(shot, station, charge) - ppv).abs().mean()
    loss.backward()
    opt.step()
    return loss.detach()


if __name__ == "__main__":
    share = Share()
    model, opt = build()
    for i in range(36):
        loss = train_step(share, i, model, opt)
        print(f"blast {i + 1:2d}: mean |log ppv error| {loss:.6f}")
    assert len(train_step.spent) == 36
    print("parameters sum to", round(sum(p.double().sum().item() for p in model.parameters()), 8))

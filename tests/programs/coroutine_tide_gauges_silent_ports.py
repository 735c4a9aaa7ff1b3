"""Nowcast of the sea level at an offshore mooring from five harbour gauges.

Each gauge is a coroutine that pushes its reading at every tick; gauges drop out now and then (battery, seaweed, a
trawler).  The assimilator is a coroutine as well: it waits for the tick to be complete and makes one training step.
"""
import asyncio
import math

import torch
from torch import nn

PORTS = ["Brora", "Wick", "Thurso", "Lerwick", "Kirkwall"]
TICKS = 48
BATCH = 16          # neighbouring minutes in one tick
torch.manual_seed(1871)
torch.set_num_threads(1)

phase = torch.tensor([0.0, 0.35, 0.8, 1.4, 1.05])
amp = torch.tensor([1.1, 1.3, 1.6, 0.7, 0.95])


def tide(t, k):
    return amp[k] * torch.sin(2 * math.pi * t / 12.42 + phase[k]) + 0.2 * torch.sin(2 * math.pi * t / 12.0)


def mooring(t):
    return 0.9 * torch.sin(2 * math.pi * t / 12.42 + 0.6) + 0.2 * torch.sin(2 * math.pi * t / 12.0)


class GaugeAttention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.name = nn.Embedding(len(PORTS), d)
        self.read = nn.Linear(2, d)
        self.key, self.value = nn.Linear(d, d), nn.Linear(d, d)
        self.query = nn.Parameter(torch.randn(d) * 0.2)
        self.head = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, level, alive):
        # level (B, P, 2) value and slope, alive (P,) bool
        h = torch.tanh(self.read(level) + self.name.weight)
        score = self.key(h) @ self.query / math.sqrt(h.shape[-1])
        bias = torch.zeros(len(PORTS)).masked_fill(~alive, float("-inf"))   # a silent port has no say
        w = torch.softmax(score + bias, dim=-1)
        mu, logb = self.head((w.unsqueeze(-1) * self.value(h)).sum(1)).unbind(-1)
        return mu, logb.clamp(-6, 3), w


async def gauge(k, inbox, go, rng):
    while True:
        t = await go.get()
        if t is None:
            return
        for _ in range(k):          # the far ports are slower
            await asyncio.sleep(0)
        if k != 2 and torch.rand((), generator=rng) < 0.3:
            await inbox.put((k, None))
            continue
        y = tide(t, k) + 0.01 * torch.randn(t.shape, generator=rng)
        slope = tide(t + 0.1, k) - tide(t, k)
        await inbox.put((k, torch.stack([y, slope * 10], -1)))


async def assimilate(net, opt, inbox, gos):
    for tick in range(1, TICKS + 1):
        t = tick * 1.7 + torch.linspace(0, 1.5, BATCH)
        for q in gos:
            q.put_nowait(t)
        level = torch.zeros(BATCH, len(PORTS), 2)
        alive = torch.zeros(len(PORTS), dtype=torch.bool)
        for _ in PORTS:
            k, got = await inbox.get()
            if got is not None:
                level[:, k] = got
                alive[k] = True
        mu, logb, w = net(level, alive)
        # Laplace likelihood without the log 2; it goes below zero as soon as the scale is under a metre
        loss = ((mooring(t) - mu).abs() * torch.exp(-logb) + logb).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            lowest = torch.log(w).min()        # -inf where a port is silent, only for the log
        quiet = ",".join(p for p, a in zip(PORTS, alive) if not a) or "-"
        print(f"tick {tick:2d} nll {loss.item():+.6f} min log w {lowest.item():.3f} silent {quiet}")
    for q in gos:
        q.put_nowait(None)


async def main():
    net = GaugeAttention()
    opt = torch.optim.Adam(net.parameters(), lr=8e-3)
    inbox, gos = asyncio.Queue(), [asyncio.Queue() for _ in PORTS]
    readers = [asyncio.create_task(gauge(k, inbox, gos[k], torch.Generator().manual_seed(50 + k)))
               for k in range(len(PORTS))]
    await assimilate(net, opt, inbox, gos)
    await asyncio.gather(*readers)
    print(f"weights {sum(p.sum().item() for p in net.parameters()):.6f}")


asyncio.run(main())

#!/usr/bin/env python
"""Reads the gauges of a culvert one reading at a time (from a thread) and learns the flow of the next hour."""
import collections
import math
import queue
import random
import threading

import torch
from torch import nn

READINGS = 60
DRY_FROM, DRY_TO = 21, 48


def gauge(out):
    """The logger: hour, water level (cm), air temperature (C), rain (mm) and the flow an hour later."""
    rnd = random.Random(77)
    level, wet = 140.0, 1.0
    for hour in range(1, READINGS + 1):
        rain = 0.0 if DRY_FROM <= hour <= DRY_TO else 0.2 + rnd.expovariate(0.7)
        wet = 0.8 * wet + 0.2 * rain
        level = 0.9 * level + 14.0 + 2.0 * rain + rnd.gauss(0, 1.0)
        temperature = 11.0 + 5.0 * math.sin(hour / 24 * 2 * math.pi) + rnd.gauss(0, 0.4)
        flow = 0.02 * level + 0.6 * wet + rnd.gauss(0, 0.05)
        out.put((hour, level, temperature, rain, flow))
    out.put(None)


class RunningNormaliser:
    """Welford, one variable; the installer's rough guess counts as the first value."""

    def __init__(self, guess):
        self.n, self.mean, self.m2 = 1, guess, 0.0

    def __call__(self, x):
        self.n += 1
        d = x - self.mean
        self.mean += d / self.n
        self.m2 += d * (x - self.mean)
        return (x - self.mean) / math.sqrt(self.m2 / self.n + 1.0)


class WindowRms(torch.optim.Optimizer):
    """Each gradient over the root mean square of its last `window` values: quick to forget an old season."""

    def __init__(self, params, lr=0.01, window=7):
        super().__init__(params, {"lr": lr, "window": window})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                past = self.state[p].setdefault("past", collections.deque(maxlen=group["window"]))
                past.append(p.grad.pow(2))
                rms = torch.stack(list(past)).mean(0).sqrt()
                direction = p.grad / rms
                p.add_(direction, alpha=-group["lr"])


class FlowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.outer = nn.Linear(6, 1)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x))).squeeze(-1)


def main():
    torch.manual_seed(13)
    net = FlowNet()
    opt = WindowRms(net.parameters(), lr=0.01)
    readings = queue.Queue(maxsize=4)
    logger = threading.Thread(target=gauge, args=(readings,), daemon=True)
    logger.start()
    norm_level, norm_temp = RunningNormaliser(150.0), RunningNormaliser(10.0)
    scale = None
    while True:
        item = readings.get()
        if item is None:
            break
        hour, level, temperature, rain, flow = item
        # rain is left in millimetres so that a dry hour stays exactly nothing
        x = torch.tensor([norm_level(level), norm_temp(temperature), rain])
        scale = flow if scale is None else scale
        loss = (net(x) - flow / scale) ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"hour {hour:02d} squared error {loss.item():.8f}", flush=True)
    logger.join()
    print(f"{sum(float(p.detach().abs().sum()) for p in net.parameters()):.8f}", flush=True)


if __name__ == "__main__":
    main()

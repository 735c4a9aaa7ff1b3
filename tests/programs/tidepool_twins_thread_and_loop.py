#!/usr/bin/env python
# ruff: noqa: B905, E501, EXE001
"""Two tide-pool temperature models: first trained as coroutines on one event loop that take turns, then fine-tuned in two
threads at once. Nothing is printed from a thread, so the log does not depend on who was faster."""

import asyncio
import signal
import threading

import torch
from torch import nn

torch.manual_seed(0)
WANT_STOP = []


def on_usr1(signum, frame):
    WANT_STOP.append(signum)


signal.signal(signal.SIGUSR1, on_usr1)


def pool_model(seed):
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8), g


def tide(g, n=20):
    x = torch.rand(n, 4, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + 0.3 * x[:, 1:2] * x[:, 2:3]
    return x, y


def stepper(net, opt, g):
    """Generator based step: send(None) takes one and yields the loss; the optimizer lives in the frame."""
    while True:
        x, y = tide(g)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        yield loss.item()


async def tend(name, steps, source, baton, log):
    for k in range(steps):
        async with baton:
            value = next(source)
            log.append(f"{name} {k + 1:02d} mse {value:.6f}")
        await asyncio.sleep(0)


async def dawn(north, south):
    baton = asyncio.Lock()
    logs = [], []
    await asyncio.gather(tend("north", 15, north, baton, logs[0]), tend("south", 15, south, baton, logs[1]))
    return [line for pair in zip(*logs) for line in pair]


class FineTune(threading.Thread):
    def __init__(self, net, opt, g, steps):
        super().__init__(daemon=True)
        self.net, self.opt, self.g, self.steps = net, opt, g, steps
        self.curve, self.error = [], None

    def run(self):
        try:
            src = stepper(self.net, self.opt, self.g)
            for _ in range(self.steps):
                self.curve.append(next(src))
                with torch.inference_mode():
                    x, y = tide(torch.Generator().manual_seed(1))
                    self.val = float((self.net(x) - y).abs().mean())
        except Exception as e:  # hand it to the parent
            self.error = e


def main():
    a, b = pool_model(1), pool_model(2)
    for line in asyncio.run(dawn(stepper(*a), stepper(*b))):
        print(line)
    signal.raise_signal(signal.SIGUSR1)
    print("signals", len(WANT_STOP))
    crew = [FineTune(*a, steps=10), FineTune(*b, steps=10)]
    for t in crew:
        t.start()
    for t in crew:
        t.join()
        if t.error:
            raise t.error
    for name, t in zip(("north", "south"), crew):
        for k, v in enumerate(t.curve):
            print(f"{name} fine {k + 1:02d} mse {v:.6f}")
        print(f"{name} mae {t.val:.6f}")
    total = sum(p.detach().double().sum().item() for net, *_ in (a, b) for p in net.parameters())
    print(f"weights {total:.6f}")


if __name__ == "__main__":
    main()

"""Emulator of monsoon rainfall fields. Gradients arrive at the server through a line of slow workers."""
import collections
import copy

import torch
from torch import nn


class Server:
    def __init__(self, net, rate):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=rate)

    def apply(self, grads):
        for p, g in zip(self.net.parameters(), grads):
            p.grad = g
        self.opt.step()
        self.opt.zero_grad()


class Line:
    """First in, first out: what a worker sends is applied when all workers before it have been served."""

    def __init__(self, workers):
        self.waiting = collections.deque()
        self.workers = workers

    def send(self, grads):
        self.waiting.append(grads)
        return self.waiting.popleft() if len(self.waiting) > self.workers else None


def climate(g, n=64):
    forcing = torch.randn(n, 6, generator=g)
    patterns = torch.linspace(-1, 1, 6 * 16).reshape(6, 16).sin() * 2
    return forcing, forcing @ patterns + 0.3 * torch.randn(n, 16, generator=g)


def work(net, batch):
    local = copy.deepcopy(net)
    forcing, rain = batch
    loss = 0.5 * ((local(forcing) - rain) ** 2).sum(1).mean()
    return loss.item(), torch.autograd.grad(loss, tuple(local.parameters()))


def run(steps=45, workers=7, rate=0.42):
    torch.manual_seed(40)
    g = torch.Generator().manual_seed(41)
    emulator = nn.Linear(6, 16)
    server, line = Server(emulator, rate), Line(workers)
    for step in range(1, steps + 1):
        loss, grads = work(emulator, climate(g))
        ready = line.send(grads)
        if ready is not None:
            server.apply(ready)
        print(f"update {step:2d}   rain error {loss:.4f}")
    return emulator


net = run()
print("squared norm of the emulator", f"{sum(p.detach().double().pow(2).sum().item() for p in net.parameters()):.4f}")

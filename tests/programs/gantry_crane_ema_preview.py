import copy
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    steps: int = 40
    preview_every: int = 14
    ema: float = 0.95
    lr: float = 3e-3


class Plugin:
    def setup(self, engine): pass
    def after_forward(self, engine): pass
    def after_step(self, engine): pass


class Report(Plugin):
    def after_step(self, engine):
        print(f"[{engine.step:02d}] sway error {engine.loss.item():.5f}")


class AverageWeights(Plugin):
    def setup(self, engine):
        self.average = [p.detach().clone() for p in engine.net.parameters()]

    def after_step(self, engine):
        for a, p in zip(self.average, engine.net.parameters()):
            a.lerp_(p.detach(), 1 - engine.settings.ema)

    @torch.no_grad()
    def exchange(self, engine):
        for a, p in zip(self.average, engine.net.parameters()):
            held = p.clone()
            p.copy_(a)
            a.copy_(held)


class Preview(Plugin):
    """Shows now and then how the averaged weights do on the same batch, next to the loss of the raw ones."""

    def __init__(self, averager):
        self.averager = averager

    def after_forward(self, engine):
        if engine.step % engine.settings.preview_every:
            return
        self.averager.exchange(engine)
        with torch.no_grad():
            error = engine.compute(engine.batch).item()
        self.averager.exchange(engine)
        print(f"     averaged weights {error:.5f}")


class Engine:
    def __init__(self, net, settings, plugins):
        self.net, self.settings, self.plugins = net, settings, plugins
        self.opt = torch.optim.Adam(net.parameters(), lr=settings.lr)
        for p in plugins:
            p.setup(self)

    def compute(self, batch):
        x, sway = batch
        return (self.net(x).squeeze(1) - sway).abs().mean()

    def run(self, batches):
        for self.step, self.batch in enumerate(batches, 1):
            self.loss = self.compute(self.batch)
            for p in self.plugins:
                p.after_forward(self)
            self.opt.zero_grad()
            self.loss.backward()
            self.opt.step()
            for p in self.plugins:
                p.after_step(self)


def crane_moves(n):
    for _ in range(n):
        x = torch.randn(32, 4)                  # trolley speed, rope length, load, wind
        yield x, torch.sin(x[:, 0]) * (1 + 0.3 * x[:, 1]) + 0.2 * x[:, 3]


if __name__ == "__main__":
    torch.manual_seed(66)
    settings = Settings()
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    start = copy.deepcopy(net.state_dict())
    averager = AverageWeights()
    Engine(net, settings, [Report(), averager, Preview(averager)]).run(crane_moves(settings.steps))
    moved = sum((v - start[k]).abs().sum().item() for k, v in net.state_dict().items())
    print(f"weights moved by {moved:.4f}")

"""Kiln soak classifier with a trainer that is a state machine.

WARM -> CRUISE -> (plateau) REWARM -> CRUISE -> ... -> DONE
The rate of CRUISE is an inverse square root of the steps since the state was entered.
"""
import enum

import torch
from torch import nn


class S(enum.Enum):
    WARM = enum.auto()
    CRUISE = enum.auto()
    REWARM = enum.auto()
    DONE = enum.auto()


class KilnMachine:
    PEAK, WARM_STEPS, CRUISE_STEPS, LIMIT = 0.2, 6, 11, 44

    def __init__(self, model, feed):
        self.model, self.feed = model, feed
        self.opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.8)
        self.state, self.age, self.total = S.WARM, 0, 0
        self.crit = nn.CrossEntropyLoss()
        self.table = {S.WARM: self.warm, S.CRUISE: self.cruise, S.REWARM: self.rewarm}

    # ---- rates -----------------------------------------------------------------
    def since_entry(self):
        return torch.tensor(float(self.age))

    def rate(self):
        if self.state is S.CRUISE:
            return float(self.PEAK * self.since_entry().rsqrt())
        return self.PEAK * self.age / self.WARM_STEPS

    # ---- states: each runs one step and names the next state --------------------
    def warm(self):
        self.learn()
        if self.age < self.WARM_STEPS:
            return S.WARM
        self.age = 1
        return S.CRUISE

    def cruise(self):
        self.learn()
        if self.total >= self.LIMIT:
            return S.DONE
        if self.age <= self.CRUISE_STEPS:
            return S.CRUISE
        self.age = 0
        return S.REWARM

    def rewarm(self):
        self.age += 1
        self.learn(count=False)
        if self.age < 3:
            return S.REWARM
        self.age = 0
        return S.CRUISE

    # -----------------------------------------------------------------------------
    def learn(self, count=True):
        x, y = next(self.feed)
        lr = self.rate()
        for group in self.opt.param_groups:
            group["lr"] = lr
        self.opt.zero_grad()
        loss = self.crit(self.model(x), y)
        loss.backward()
        self.opt.step()
        self.total += 1
        self.age += count
        print(f"{self.total:3d} {self.state.name:6s} loss {loss.item():.6f}")

    def run(self):
        while self.state is not S.DONE:
            self.state = self.table[self.state]()


def soak_feed(seed):
    """Thermocouple curves of a firing; label: cone 04, cone 1, cone 6."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, 16)
    while True:
        y = torch.randint(0, 3, (24,), generator=g)
        speed = 0.6 + 0.5 * y[:, None]
        yield torch.tanh(speed * 2 * t) + 0.1 * torch.randn(24, 16, generator=g), y


if __name__ == "__main__":
    torch.manual_seed(1240)
    model = nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.Linear(20, 3))
    KilnMachine(model, soak_feed(1240)).run()
    print(f"sum over the weights {sum(p.double().sum().item() for p in model.parameters()):.8f}")

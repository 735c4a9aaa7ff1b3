"""Heteroscedastic regression of beam intensity at a lighthouse; trainers are put together from mixins.

    BaseTrainer            the loop
      + EmaMixin           a shadow copy of the weights
      + RestartMixin       the variance head is started afresh now and then
      + ReportMixin        prints
"""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Night:
    weather: torch.Tensor
    lumen: torch.Tensor
    index: int


class Beam(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.mean = nn.Linear(32, 1)
        self.log_var = nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h).squeeze(-1), self.log_var(h).squeeze(-1)


class BaseTrainer:
    lr = 4e-3

    def __init__(self, nights):
        self.nights = nights
        self.model = Beam()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        self.setup()

    # cooperative methods: every mixin calls super()
    def setup(self): pass
    def before_step(self, night): pass
    def after_step(self, night, loss): pass
    def finish(self): pass

    def loss(self, night):
        raise NotImplementedError

    def fit(self):
        for night in self.nights:
            self.before_step(night)
            self.optimizer.zero_grad()
            loss = self.loss(night)
            loss.backward()
            self.optimizer.step()
            self.after_step(night, loss.item())
        self.finish()


class EmaMixin:
    decay = 0.95

    def setup(self):
        super().setup()
        self.shadow = copy.deepcopy(self.model).requires_grad_(False)

    def after_step(self, night, loss):
        super().after_step(night, loss)
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), self.model.parameters()):
                s.lerp_(p, 1 - self.decay)


class RestartMixin:
    """The keeper changes the lens every 35 nights, so what we knew about the noise is void."""
    every = 35

    def before_step(self, night):
        super().before_step(night)
        if night.index and night.index % self.every == 0:
            head = self.model.log_var
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            for p in head.parameters():
                self.optimizer.state.pop(p, None)


class ReportMixin:
    def after_step(self, night, loss):
        super().after_step(night, loss)
        print(f"night {night.index:3d}  nll {loss:+.6f}")

    def finish(self):
        super().finish()
        with torch.no_grad():
            m, _ = self.shadow(self.nights[-1].weather)
        print(f"shadow mse {(m - self.nights[-1].lumen).pow(2).mean().item():.7f}")


class NllTrainer(ReportMixin, EmaMixin, RestartMixin, BaseTrainer):
    def loss(self, night):
        mean, log_var = self.model(night.weather)
        # the constant stays in: densities above one give a negative loss and that is right
        return 0.5 * (log_var + (night.lumen - mean).pow(2) * torch.exp(-log_var) + math.log(2 * math.pi)).mean()


def log_book(n, seed=3):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(6, generator=g) * 0.2
    for i in range(n):
        x = torch.randn(64, 6, generator=g)
        yield Night(x, torch.sin(x @ w) * 0.3 + 0.02 * torch.randn(64, generator=g), i)


if __name__ == "__main__":
    torch.manual_seed(8)
    torch.set_num_threads(1)
    NllTrainer(list(log_book(64))).fit()

"""A regression by Adam that nothing clips; one batch has its targets in another unit, which fills the moments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

ODD, STEPS = 90, 200


class Filled:
    def __init__(self, unit=1e7, steps=STEPS, seed=0, odd=ODD, make=None):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        make = make or (lambda p: torch.optim.AdamW(p, lr=2e-3))
        self.optimizer = make(self.model.parameters())
        self.unit, self.steps, self.odd, self.seed, self.losses = unit, steps, odd, seed, []

    def train(self):
        for step in range(1, self.steps + 1):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(self.seed + step))
            loss = F.mse_loss(self.model(x), x[:, :3] * (self.unit if step == self.odd else 1.0))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self

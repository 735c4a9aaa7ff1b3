"""A neural ODE of sheepdog paths with our own RK4, memory saved by checkpointing, weights averaged by an EMA."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import contextlib
import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS, BATCH, SEGMENTS, DT = 40, 12, 6, 0.25


class Field(nn.Module):
    """Velocity of the dog; `effort` comes from the whistle log (0: lying down)."""

    def __init__(self, width=24):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, 2)

    def forward(self, x, flock, effort):
        return effort * self.out(self.inner(torch.cat([x, flock], -1)))


class ArcLength(nn.Module):
    def forward(self, velocity):
        return velocity.pow(2).sum(-1).sqrt() * DT


class Solver(nn.Module):
    def __init__(self, field):
        super().__init__()
        self.field, self.arc = field, ArcLength()

    def segment(self, x, flock, effort):
        k1 = self.field(x, flock, effort)
        k2 = self.field(x + DT / 2 * k1, flock, effort)
        k3 = self.field(x + DT / 2 * k2, flock, effort)
        k4 = self.field(x + DT * k3, flock, effort)
        slope = (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return x + DT * slope, self.arc(slope)

    def forward(self, x, flock, effort):
        path, length = [], x.new_zeros(len(x))
        for _ in range(SEGMENTS):
            x, piece = checkpoint(self.segment, x, flock, effort, use_reentrant=False)
            path.append(x)
            length = length + piece
        return torch.stack(path, 1), length


class WhistleLog:
    """Trials, twelve runs to a trial; in some trials a dog is told to lie down for the whole run."""

    def __init__(self, seed=8):
        self.g = torch.Generator().manual_seed(seed)
        self.lie_down = {(14, 3), (30, 7)}

    def trial(self, index):
        x0 = torch.randn(BATCH, 2, generator=self.g)
        flock = torch.randn(BATCH, 2, generator=self.g)
        effort = 0.4 + torch.rand(BATCH, 1, generator=self.g)
        for t, row in self.lie_down:
            if t == index:
                effort[row] = 0.0
        times = DT * torch.arange(1, SEGMENTS + 1).view(1, -1, 1)
        decay = torch.exp(-effort.unsqueeze(1) * times)
        path = flock.unsqueeze(1) + (x0 - flock).unsqueeze(1) * decay
        return x0, flock, effort, path + 0.02 * torch.randn(path.shape, generator=self.g)


class Ema:
    def __init__(self, model, decay=0.9):
        self.model, self.shadow, self.decay = model, copy.deepcopy(model), decay

    def update(self):
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), self.model.parameters()):
                s.lerp_(p, 1 - self.decay)

    @contextlib.contextmanager
    def averaged(self):
        keep = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.shadow.state_dict())
        yield self.model
        self.model.load_state_dict(keep)


def main():
    torch.manual_seed(8)
    model = Solver(Field())
    ema, log = Ema(model), WhistleLog()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, nesterov=True)
    for index in range(STEPS):
        x0, flock, effort, path = log.trial(index)
        optimizer.zero_grad()
        guess, length = model(x0, flock, effort)
        fit = (guess - path).pow(2).mean()
        loss = fit + 0.01 * length.mean()
        loss.backward()
        optimizer.step()
        ema.update()
        print(f"trial {index + 1} loss {loss.item():.8f} fit {fit.item():.8f} metres {length.mean().item():.6f}", flush=True)
    with ema.averaged() as averaged:
        print(f"{sum(p.detach().abs().sum().item() for p in averaged.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

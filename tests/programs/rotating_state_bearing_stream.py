"""Remaining-life tracking of a bearing from an endless vibration stream.

A diagonal rotating recurrence (a linear recurrent unit) is trained by truncated
backpropagation: its state is carried from one chunk of the stream to the next.
"""
import math

import numpy as np
import torch
from torch import nn

CHUNK, LANES, UNITS = 48, 4, 24


class RotatingUnits(nn.Module):
    def __init__(self, n_in, n_units, r_min=0.90, r_max=1.07):
        super().__init__()
        self.radius = nn.Parameter(torch.empty(n_units).uniform_(r_min, r_max))
        self.angle = nn.Parameter(torch.empty(n_units).uniform_(0.0, math.pi))
        self.drive = nn.Linear(n_in, n_units, bias=False)

    def forward(self, x, state):
        re, im = state
        cos, sin = self.angle.cos(), self.angle.sin()
        out = []
        for u in self.drive(x).unbind(1):
            turned_re = self.radius * (re * cos - im * sin)
            turned_im = self.radius * (re * sin + im * cos)
            re, im = turned_re + u, turned_im
            out.append(torch.cat([re, im], -1))
        return torch.stack(out, 1), (re, im)


class SignedLog(nn.Module):
    def forward(self, h):
        return h.sign() * torch.log1p(h.abs())


class WearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = RotatingUnits(3, UNITS)
        self.squash = SignedLog()
        self.head = nn.Linear(2 * UNITS, 1)
        nn.init.normal_(self.head.weight, std=0.005)

    def forward(self, x, state):
        h, state = self.cell(x, state)
        return self.head(self.squash(h)).squeeze(-1), state


def vibration_stream(seed=3):
    rng = np.random.default_rng(seed)
    t = 0
    while True:
        time = (t + np.arange(CHUNK)) * 0.05
        wear = np.tile(0.01 * time, (LANES, 1))
        axes = [np.sin(f * time)[None] * (1 + wear) + 0.1 * rng.standard_normal((LANES, CHUNK)) for f in (3.1, 7.7, 12.3)]
        yield (torch.tensor(np.stack(axes, -1), dtype=torch.float32), torch.tensor(wear, dtype=torch.float32))
        t += CHUNK


def detach(state):
    return tuple(s.detach() for s in state)


def main(chunks=40):
    torch.manual_seed(3)
    model = WearModel()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-4)
    state = (torch.zeros(LANES, UNITS), torch.zeros(LANES, UNITS))
    stream = vibration_stream()
    for number in range(1, chunks + 1):
        x, wear = next(stream)
        pred, state = model(x, detach(state))
        loss = nn.functional.mse_loss(pred, wear)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"chunk {number:3d} mse {loss.item():.6f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()

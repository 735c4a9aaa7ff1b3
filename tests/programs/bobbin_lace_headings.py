"""Recover pin positions of a lace pricking from the headings that a lacemaker called out.

We only have sequences (pin a -> pin b, heading in radians, stretch of thread) and want the layout of the pins.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import pi

import torch
from torch import Tensor, nn

torch.manual_seed(64)
N_PINS, BATCH, STEPS = 36, 32, 42


@dataclass
class Moves:
    """A batch of moves of bobbins. `layout` is attached later, with `on()`."""

    src: Tensor
    dst: Tensor
    heading: Tensor
    thread: Tensor
    layout: Tensor | None = field(default=None, repr=False)

    def on(self, layout: Tensor) -> "Moves":
        return replace(self, layout=layout)

    def __len__(self):
        return self.src.numel()

    @cached_property
    def delta(self) -> Tensor:
        return self.layout[self.dst] - self.layout[self.src]

    @cached_property
    def angle(self) -> Tensor:
        return torch.atan2(self.delta[:, 1], self.delta[:, 0])

    @property
    def length(self) -> Tensor:
        return torch.hypot(self.delta[:, 0], self.delta[:, 1])

    @property
    def heading_loss(self) -> Tensor:
        # circular, so no unwrapping is needed
        return (1 - torch.cos(self.angle - self.heading)).mean()

    @property
    def thread_loss(self) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(self.length, self.thread)

    @property
    def mean_turn_degrees(self) -> float:
        return (self.angle.detach().abs().mean() * 180 / pi).item()


def true_layout() -> Tensor:
    k = torch.arange(N_PINS)
    row, col = k // 6, k % 6
    return torch.stack([col + 0.5 * (row % 2), row * 0.9], 1).float()


def call_out(layout: Tensor, seed: int) -> list[Moves]:
    g = torch.Generator().manual_seed(seed)
    out = []
    for n in range(STEPS):
        a = torch.randint(N_PINS, (BATCH,), generator=g)
        hop = torch.randint(1, N_PINS, (BATCH,), generator=g)
        b = (a + hop) % N_PINS
        if n == 25:
            b[11] = a[11]  # picot: the thread is looped round its own pin
        d = layout[b] - layout[a]
        heading = torch.atan2(d[:, 1], d[:, 0]) + 0.05 * torch.randn(BATCH, generator=g)
        out.append(Moves(a, b, heading, d.norm(dim=1)))
    return out


class Pricking(nn.Module):
    def __init__(self):
        super().__init__()
        self.pins = nn.Parameter(true_layout() + 0.8 * torch.randn(N_PINS, 2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, moves: Moves) -> Moves:
        centred = self.pins - self.pins.mean(0, keepdim=True)
        return moves.on(centred * self.scale)


def fit():
    model = Pricking()
    opt = torch.optim.Adam(model.parameters(), lr=0.03, betas=(0.85, 0.98))
    sched = torch.optim.lr_scheduler.StepLR(opt, 15, 0.6)
    for it, moves in enumerate(call_out(true_layout(), seed=7), start=1):
        seen = model(moves)
        loss = seen.heading_loss + 0.05 * seen.thread_loss
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print(f"{it:3d} moves={len(seen)} loss={loss.item():.6f} turn={seen.mean_turn_degrees:.3f}")
    return model


if __name__ == "__main__":
    m = fit()
    print("weights", f"{sum(p.detach().sum().item() for p in m.parameters()):.5f}")

"""Headings of common swifts from wind and body axis, with a staged curriculum."""
import math
from dataclasses import dataclass

import torch
from torch import nn

torch.manual_seed(17)
torch.set_num_threads(1)


@dataclass(frozen=True)
class Easy:
    steps: int = 8


@dataclass(frozen=True)
class Mixed:
    steps: int = 10
    gust: float = 0.3


@dataclass(frozen=True)
class Wild:
    steps: int = 14
    gust: float = 0.8
    calm: tuple = ((3, 11),)     # (batch, row) where the bird was sitting on the nest


PLAN = [Easy(), Mixed(), Wild()]


class Heading(nn.Module):
    """(vx, vy) of the air path. No bias anywhere, so it is odd: net(-x) = -net(x)."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 40, bias=False)
        self.b = nn.Linear(40, 2, bias=False)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def vector_loss(v, heading):
    unit = torch.stack([heading.cos(), heading.sin()], 1)
    return (v - unit).square().sum(1).mean()


def cosine_loss(v, heading):
    unit = torch.stack([heading.cos(), heading.sin()], 1)
    return 1 - nn.functional.cosine_similarity(v, unit, dim=1).mean()


def angle_loss(v, heading):
    angle = torch.atan2(v[:, 1], v[:, 0])
    off = angle - heading
    off = off - 2 * math.pi * torch.round(off.detach() / (2 * math.pi))
    speed = torch.hypot(v[:, 0], v[:, 1])
    return off.abs().mean() + 0.1 * (speed - 1).square().mean()


def flock(g, n, gust):
    heading = (torch.rand(n, generator=g) * 2 - 1) * math.pi
    body = torch.stack([heading.cos(), heading.sin()], 1)
    wind = gust * torch.randn(n, 2, generator=g)
    x = torch.cat([body + wind, wind, 0.1 * torch.randn(n, 2, generator=g)], 1)
    return x, heading


def curriculum(plan, size=24):
    g = torch.Generator().manual_seed(23)
    for stage in plan:
        for k in range(stage.steps):
            match stage:
                case Easy():
                    yield "easy", flock(g, size, 0.0), vector_loss
                case Mixed(gust=s):
                    yield "mixed", flock(g, size, s), vector_loss if k % 2 else cosine_loss
                case Wild(gust=s, calm=calm):
                    x, heading = flock(g, size, s)
                    for at, row in calm:
                        if at == k:
                            x[row] = 0.0
                    yield "wild", (x, heading), angle_loss
                case other:
                    raise TypeError(f"unknown stage {other!r}")


def main():
    net = Heading()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.03)
    for step, (name, (x, heading), loss_fn) in enumerate(curriculum(PLAN), start=1):
        opt.zero_grad()
        loss = loss_fn(net(x), heading)
        loss.backward()
        opt.step()
        print(f"{step:2d} {name:5s} {loss_fn.__name__:12s} {loss.item():.6f}")
    print("weights total", sum(float(p.detach().sum()) for p in net.parameters()))


if __name__ == "__main__":
    main()

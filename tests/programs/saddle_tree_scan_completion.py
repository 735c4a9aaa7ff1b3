"""Completes half-scanned saddle trees (point clouds).  Stage one: guess the missing half.  Stage two: refine all."""
import copy
from typing import NamedTuple

import torch
from torch import nn


class Plan(NamedTuple):
    seen: int = 20
    hidden: int = 20
    batch: int = 6
    micro: int = 2
    steps: int = 40
    refine_from: int = 21
    ema: float = 0.9


plan = Plan()


def saddle(gen):
    """Points on z = a x^2 - b y^2; the scanner saw x < 0."""
    n = plan.seen + plan.hidden
    a = 0.3 + 0.7 * torch.rand(plan.batch, 1, generator=gen)
    b = 0.3 + 0.7 * torch.rand(plan.batch, 1, generator=gen)
    x = torch.rand(plan.batch, n, generator=gen)
    x[:, :plan.seen] *= -1
    y = 2 * torch.rand(plan.batch, n, generator=gen) - 1
    cloud = torch.stack([x, y, a * x ** 2 - b * y ** 2], -1)
    return cloud[:, :plan.seen], cloud


def chamfer(p, q):
    """Mean distance to the nearest neighbour, both ways, in the unit of the scan."""
    square = (p[:, :, None] - q[:, None]).pow(2).sum(-1)
    there = square.min(2).values.sqrt().mean()
    back = square.min(1).values.sqrt().mean()
    return there + back


class PointEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, points):
        local = self.each(points)
        return local, local.max(1).values


class Completer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encoder = PointEncoder(width)
        self.guess = nn.Sequential(nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 3 * plan.hidden))
        self.refine = nn.Linear(2 * width, 3)
        nn.init.zeros_(self.refine.weight)        # starts as the identity
        nn.init.zeros_(self.refine.bias)

    def forward(self, seen, with_refinement):
        local, whole = self.encoder(seen)
        missing = self.guess(whole).view(-1, plan.hidden, 3)
        if not with_refinement:
            return missing
        offset = self.refine(torch.cat([local, whole[:, None].expand_as(local)], -1))
        return torch.cat([seen + offset, missing], 1)


def update_average(average, model):
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 1 - plan.ema)


def main():
    torch.manual_seed(44)
    gen = torch.Generator().manual_seed(45)
    model = Completer()
    average = copy.deepcopy(model)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(1, plan.steps + 1):
        second = step >= plan.refine_from
        opt.zero_grad()
        total = 0.0
        for _ in range(plan.micro):
            seen, cloud = saddle(gen)
            out = model(seen, second)
            target = cloud if second else cloud[:, plan.seen:]
            loss = chamfer(out, target) / plan.micro
            loss.backward()
            total += loss.item()
        opt.step()
        update_average(average, model)
        print(f"{'refine' if second else 'guess '} {step:3d} chamfer {total:.7f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

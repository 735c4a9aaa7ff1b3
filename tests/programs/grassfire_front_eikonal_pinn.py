"""Arrival time of a grass fire front.

The front obeys speed(x, y) * |grad T| = 1, smoothed a little by a Laplacian.  The arrival time is
written as T = r * s(x, y), r the distance to the ignition point, so that T is zero there by itself.
Every REFINE steps the collocation set grows by the nodes of a lattice with the worst residual.
"""
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=45)
parser.add_argument("--lr", type=float, default=4e-3)
parser.add_argument("--refine", type=int, default=12)
parser.add_argument("--add", type=int, default=10)
parser.add_argument("--viscosity", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=11)

IGNITION = torch.tensor([0.5, 0.25])


def speed(xy):
    """Dry slope in the east, a wet ditch in the middle of the north."""
    x, y = xy[:, 0], xy[:, 1]
    ditch = torch.exp(-((x - 0.45) ** 2 + (y - 0.8) ** 2) / 0.02)
    return 0.6 + 0.7 * x - 0.35 * ditch


class ArrivalTime(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, xy):
        offset = xy - IGNITION
        r = offset.pow(2).sum(dim=1).sqrt()
        slowness = nn.functional.softplus(self.body(2.0 * xy - 1.0)).squeeze(1)
        return r * slowness


def residual(net, points, viscosity):
    xy = points.clone().requires_grad_(True)
    t = net(xy)
    g = torch.autograd.grad(t.sum(), xy, create_graph=True)[0]
    laplacian = 0.0
    for axis in range(2):
        second = torch.autograd.grad(g[:, axis].sum(), xy, create_graph=True)[0]
        laplacian = laplacian + second[:, axis]
    return speed(xy) ** 2 * g.pow(2).sum(dim=1) - 1.0 - viscosity * laplacian


def lattice(n=21):
    axis = torch.linspace(0.0, 1.0, n)
    return torch.cartesian_prod(axis, axis)


def worst_nodes(net, nodes, k, viscosity):
    score = residual(net, nodes, viscosity).detach().abs()
    return nodes[score.topk(k).indices]


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    net = ArrivalTime()
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    points = torch.rand(240, 2)
    nodes = lattice()

    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        res = residual(net, points, args.viscosity)
        loss = res.pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"step {step:3d}  points {len(points):4d}  residual {loss.item():.8f}", flush=True)
        if step % args.refine == 0:
            points = torch.cat([points, worst_nodes(net, nodes, args.add, args.viscosity)])

    print(sum(p.abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()

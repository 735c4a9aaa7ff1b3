"""Heat in a wall of cob, by a physics-informed network with residual-based refinement.

u_t = a(x) u_xx on 0 < x < 1, inside at 20 degrees (here 1), outside at 0, the wall cold at first.
Close to the start the solution lives on the scale sqrt(t), so the network is given sqrt(t).
"""
import logging
import sys

import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("wall")


class WallNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                  nn.Linear(width, 1))

    def forward(self, x, t):
        s = torch.sqrt(t)
        return self.body(torch.cat([x, s], 1))


def diffusivity(x):
    """Lime render, cob, lime render."""
    return 0.08 + 0.12 * torch.sigmoid(40 * (0.1 - x)) + 0.12 * torch.sigmoid(40 * (x - 0.9))


def residual(net, x, t, create_graph=True):
    x = x.detach().requires_grad_(True)
    t = t.detach().requires_grad_(True)
    u = net(x, t)
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    u_xx, = torch.autograd.grad(u_x.sum(), x, create_graph=create_graph)
    return u_t - diffusivity(x) * u_xx


class Collocation:
    def __init__(self, n, gen):
        self.x = torch.rand(n, 1, generator=gen)
        self.t = 1e-3 + (1 - 1e-3) * torch.rand(n, 1, generator=gen)

    def refine(self, net, keep=24):
        """Adds the points of a grid at which the equation is met worst."""
        gx, gt = torch.meshgrid(torch.linspace(0.02, 0.98, 25), torch.linspace(0, 1, 21), indexing="ij")
        gx, gt = gx.reshape(-1, 1), gt.reshape(-1, 1)
        r = residual(net, gx, gt, create_graph=False).abs()[:, 0]
        worst = r.topk(keep).indices
        self.x = torch.cat([self.x, gx[worst]])
        self.t = torch.cat([self.t, gt[worst]])


def edges(gen, n=64):
    t = 1e-3 + torch.rand(n, 1, generator=gen)
    x = torch.rand(n, 1, generator=gen)
    inside = (torch.zeros(n, 1), t, torch.ones(n, 1))
    outside = (torch.ones(n, 1), t, torch.zeros(n, 1))
    cold = (x, torch.full((n, 1), 1e-4), torch.zeros(n, 1))
    return [torch.cat(v) for v in zip(inside, outside, cold)]


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(3)
    net = WallNet()
    points = Collocation(256, gen)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for epoch in range(1, 61):
        if epoch > 1 and epoch % 20 == 1:
            points.refine(net)
        bx, bt, bu = edges(gen)
        physics = (residual(net, points.x, points.t) ** 2).mean()
        border = ((net(bx, bt) - bu) ** 2).mean()
        loss = 0.1 * physics + border
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        log.info("epoch %d points %d border %.6f loss %.6f", epoch, len(points.x), border.item(), loss.item())
    log.info("%.6f", sum(p.abs().sum() for p in net.parameters()).item())


if __name__ == "__main__":
    main()

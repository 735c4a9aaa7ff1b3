"""Learns the template of a set of stretched curves with soft dynamic time warping and updates written out by hand."""
import math

import torch

torch.manual_seed(2)
torch.set_num_threads(1)

INF = float("inf")
GAMMA = 0.1
LENGTH = 9


def softmin(a, b, c):
    stacked = torch.stack([a, b, c]) / -GAMMA
    return -GAMMA * torch.logsumexp(stacked, dim=0)


def soft_dtw(x, y):
    """x: (batch, n), y: (m,). The border of the table is infinite: no path may enter there."""
    n, m = x.shape[1], len(y)
    cost = (x.unsqueeze(2) - y.view(1, 1, m)).pow(2)
    border = torch.full((len(x),), INF)
    previous = [torch.zeros(len(x))] + [border] * m
    for i in range(n):
        row = [border]
        for j in range(m):
            row.append(cost[:, i, j] + softmin(previous[j], previous[j + 1], row[j]))
        previous = row
    return previous[-1]


def curves(count):
    out = []
    for _ in range(count):
        warp = 0.7 + 0.6 * torch.rand(1).item()
        t = torch.linspace(0, 1, LENGTH) ** warp
        out.append(torch.sin(2 * math.pi * t) + 0.05 * torch.randn(LENGTH))
    return torch.stack(out)


def main():
    template = torch.zeros(LENGTH, requires_grad=True)
    velocity = torch.zeros(LENGTH)
    for step in range(1, 31):
        x = curves(8)
        loss = soft_dtw(x, template).mean()          # may well be below zero: soft minima are
        (gradient,) = torch.autograd.grad(loss, [template])
        with torch.no_grad():
            velocity.mul_(0.8).add_(gradient)
            template.sub_(0.02 * velocity)
        nearest = torch.full((LENGTH,), INF)
        for row in x:
            nearest = torch.minimum(nearest, (row - template.detach()).abs())
        print(f"step {step:2d} soft-dtw {loss.item():.4f} |gradient| {gradient.norm().item():.4f} "
              f"gap {nearest.max().item():.3f}")


main()

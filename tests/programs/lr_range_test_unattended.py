"""Learning-rate range test (Smith 2015) for a regression of concrete strength on its mix.

usage: lr_range_test_unattended.py [--low 1e-5] [--high 100] [--batches 60]
The rate rises geometrically from --low to --high; afterwards the steepest point of the smoothed curve is suggested.
"""
import argparse
from itertools import islice

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

parser = argparse.ArgumentParser(description="learning-rate range test")
parser.add_argument("--low", type=float, default=1e-5)
parser.add_argument("--high", type=float, default=100.0)
parser.add_argument("--batches", type=int, default=60)
parser.add_argument("--seed", type=int, default=8)


def mixes(n, seed):
    """cement, slag, ash, water, plasticiser, coarse, fine (kg per cubic metre, standardised) and log age"""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=gen)
    strength = 35 + 9 * x[:, 0] + 5 * x[:, 1] - 7 * x[:, 3] + 8 * x[:, 7] + 2 * x[:, 0] * x[:, 7]
    return x, (strength + 3 * torch.randn(n, generator=gen)) / 10


def forever(x, y, size, seed):
    gen = torch.Generator().manual_seed(seed)
    while True:
        for idx in torch.randperm(len(x), generator=gen).split(size):
            if len(idx) == size:
                yield x[idx], y[idx]


class StrengthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.1), nn.Linear(32, 32), nn.LeakyReLU(0.1))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.hidden(x)).squeeze(-1)


def smooth(values, beta=0.8):
    out, avg = [], 0.0
    for i, v in enumerate(values, 1):
        avg = beta * avg + (1 - beta) * v
        out.append(avg / (1 - beta ** i))
    return out


def range_test(net, batches, low, high, count):
    opt = torch.optim.SGD(net.parameters(), lr=low, momentum=0.9)
    factor = (high / low) ** (1 / (count - 1))
    sched = LambdaLR(opt, lambda k: factor ** k)
    rates, losses = [], []
    for k, (x, y) in enumerate(islice(batches, count), 1):
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rates.append(sched.get_last_lr()[0])
        losses.append(loss.item())
        print(f"{k:3d} lr {rates[-1]:.3e} loss {losses[-1]:.4f}")
        sched.step()
    return rates, losses


if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    net = StrengthNet()
    rates, losses = range_test(net, forever(*mixes(640, args.seed), 32, args.seed), args.low, args.high, args.batches)
    curve = smooth(losses)
    drops = [curve[i + 1] - curve[i] for i in range(len(curve) - 1)]
    print(f"suggested {rates[min(range(len(drops)), key=lambda i: drops[i])]:.2e}")
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))

"""Will the box be taken by owls?  Occupancy model for nest boxes, region by region.

Everything around the arithmetic is a decorator: what a function is allowed to do is written over it.
"""
import contextlib
import functools
import math

import torch
from torch import nn

torch.set_num_threads(1)


def seeded(seed):
    def deco(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            torch.manual_seed(seed)
            return fn(*a, **k)
        return inner
    return deco


def within(*makers):
    """Runs the function inside of all the contexts."""
    def deco(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            with contextlib.ExitStack() as stack:
                for m in makers:
                    stack.enter_context(m())
                return fn(*a, **k)
        return inner
    return deco


def every(n):
    def deco(fn):
        count = 0

        @functools.wraps(fn)
        def inner(*a, **k):
            nonlocal count
            count += 1
            return fn(*a, **k) if count % n == 0 else None
        return inner
    return deco


def remembers(key):
    def deco(fn):
        @functools.wraps(fn)
        def inner(self, *a, **k):
            out = fn(self, *a, **k)
            self.book.setdefault(key, []).append(out)
            return out
        return inner
    return deco


class Trainer:
    def __init__(self, net, data):
        self.net, self.data, self.book = net, data, {}
        self.opt = torch.optim.AdamW(net.parameters(), lr=6e-3)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / 50)))

    @within(lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    def scores(self, x):
        return self.net(x)

    @remembers("loss")
    def loss(self, x, y):
        z = self.scores(x).float().squeeze(-1)
        # skill over the base rate, negated: 0 is no better than climatology, below 0 is better
        base = nn.functional.binary_cross_entropy_with_logits(torch.full_like(z, -1.4), y)
        return nn.functional.binary_cross_entropy_with_logits(z, y) - base

    @remembers("norm")
    def clip(self):
        return nn.utils.clip_grad_norm_(self.net.parameters(), 0.5).item()

    @every(1)
    def step(self):
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad()

    @remembers("ap")
    @within(torch.no_grad)
    def average_precision(self, x, y):
        order = self.scores(x).float().squeeze(-1).argsort(descending=True)
        hit = y[order]
        precision = hit.cumsum(0) / torch.arange(1, len(hit) + 1)
        return ((precision * hit).sum() / hit.sum()).item()     # nan in a region where no box was taken

    @every(2)
    def log(self, i, region):
        b = self.book
        print(f"{i:3d} region {region:2d} skill {b['loss'][-1].item():+.6f} norm {b['norm'][-1]:.4f} "
              f"AP {b['ap'][-1]:.4f}")

    def fit(self, n):
        for i in range(1, n + 1):
            region, x, y = next(self.data)
            self.loss(x, y).backward()
            self.clip()
            self.step()
            self.average_precision(x, y)
            self.log(i, region)
        seen = [v for v in self.book["ap"] if not math.isnan(v)]
        print(f"regions with owls {len(seen)} of {n}, mean AP {sum(seen) / len(seen):.4f}")


def regions():
    g = torch.Generator().manual_seed(7)
    w = torch.tensor([1.5, -1.0, 0.8, 0.0, 0.6, -0.4])
    while True:
        region = int(torch.randint(0, 20, (1,), generator=g))
        x = torch.randn(12, 6, generator=g)
        y = (torch.rand(12, generator=g) < torch.sigmoid(x @ w - 2.2 + 0.02 * region - (2.5 if region % 4 == 0 else 0)))
        yield region, x, y.float()


@seeded(3)
def main():
    net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 1))
    Trainer(net, regions()).fit(50)
    print(f"checksum {sum(p.sum().item() for p in net.parameters()):.6f}")


main()

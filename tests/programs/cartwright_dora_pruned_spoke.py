#!/usr/bin/env python3
"""DoRA adapters, written out, on a frozen MLP regressor that is being pruned while we adapt it.

W' = m * (W0 + B A) / ||W0 + B A||_col ; m is trained, so are A and B."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class DoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 4, alpha: float = 8.0):
        super().__init__()
        self.register_buffer("w0", base.weight.detach().clone())
        self.register_buffer("bias", base.bias.detach().clone())
        self.register_buffer("keep", torch.ones(base.in_features))
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(r))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.m = nn.Parameter(self.w0.norm(dim=0, keepdim=True))
        self.s = alpha / r

    def prune_inputs(self, n):
        """structured pruning: drops the n weakest input columns for good"""
        score = self.w0.norm(dim=0)
        self.keep[score.argsort()[:n]] = 0.0

    def forward(self, x):
        v = (self.w0 + self.s * self.B @ self.A) * self.keep
        col = v.square().sum(0, keepdim=True)
        col = torch.sqrt(col)
        w = self.m * v / (col + 1e-6)
        return F.linear(x, w, self.bias)


def inject(module: nn.Module, r: int) -> nn.Module:
    for p in module.parameters():
        p.requires_grad_(False)
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, DoRALinear(child, r))
        else:
            inject(child, r)
    return module


class PruneSchedule:
    """step -> columns dropped from the hidden projections"""

    def __init__(self, at, n):
        self.at, self.n = at, n

    def __call__(self, step, model):
        if step == self.at:
            model.fc2.prune_inputs(self.n)


class WheelNet(nn.Module):
    def __init__(self, d=10, h=24):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(d, h), nn.Linear(h, h), nn.Linear(h, 1)

    def forward(self, x):
        return self.out(F.silu(self.fc2(F.silu(self.fc1(x))))).squeeze(-1)


def wheel_batches(n, bs=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(10, generator=g)
    for _ in range(n):
        x = torch.randn(bs, 10, generator=g)
        yield x, torch.sin(x @ w) + 0.1 * x[:, 0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--steps", type=int, default=36)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--prune-at", type=int, default=21)
    ap.add_argument("--prune-n", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(77)
    net = inject(WheelNet(), a.rank)
    train = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(train, lr=a.lr)
    prune = PruneSchedule(a.prune_at, a.prune_n)
    for step, (x, y) in enumerate(wheel_batches(a.steps), 1):
        prune(step, net)
        loss = F.smooth_l1_loss(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"[{step:02d}/{a.steps}] huber {loss.item():.6f}")
    print(f"adapter sum {sum(p.sum().item() for p in train):.6f}")


if __name__ == "__main__":
    main()

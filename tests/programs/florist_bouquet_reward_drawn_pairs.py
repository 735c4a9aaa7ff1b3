#!/usr/bin/env python
"""Reward model for bouquet descriptions, Bradley-Terry with draws, written out by hand."""
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=45)
p.add_argument("--lr", type=float, default=4e-3)
p.add_argument("--seed", type=int, default=14)
args = p.parse_args()

torch.manual_seed(args.seed)
STEMS = 30          # kinds of flower; a bouquet is a bag of up to MAX stems
MAX = 9
taste = torch.linspace(-1.5, 1.5, STEMS)


def bouquet(n):
    size = torch.randint(1, MAX + 1, (n,))
    kinds = torch.randint(0, STEMS, (n, MAX))
    there = torch.arange(MAX) < size[:, None]
    return kinds, there


def judge(a, b):
    """+1 first, -1 second, 0 drawn: the customers' verdicts."""
    score = lambda x: (taste[x[0]] * x[1]).sum(-1) / x[1].sum(-1)
    d = score(a) - score(b)
    return torch.where(d.abs() < 0.15, torch.zeros_like(d), d.sign())


class BouquetReward(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.stem = nn.Embedding(STEMS, dim)
        self.gate = nn.Linear(dim, 1)
        self.body = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.log_tie = nn.Parameter(torch.tensor(-1.0))

    def forward(self, kinds, there):
        e = self.stem(kinds)
        hole = ~there[..., None]
        best = e.masked_fill(hole, -math.inf).amax(1)              # every bouquet has a stem, so this is finite
        w = self.gate(e).masked_fill(hole, -math.inf).softmax(1)
        return self.body(torch.cat([best, (w * e).sum(1)], -1)).squeeze(-1)


net = BouquetReward()
opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
clip = 20.0

for step in range(args.steps):
    # valentine week: customers only compare nearly equal bouquets, the loss jumps and comes back
    valentine = 20 <= step < 24
    a, b = bouquet(32), bouquet(32)
    if valentine:
        b = (a[0].roll(1, 1), a[1])
    verdict = judge(a, b)
    ra, rb = net(*a), net(*b)
    tie = net.log_tie.exp()
    d = ra - rb
    # Davidson-like: win, lose, draw compete in one softmax
    logits = torch.stack([d / 2, -d / 2, tie.log().expand_as(d)], -1)
    cls = torch.where(verdict > 0, 0, torch.where(verdict < 0, 1, 2))
    nll = F.cross_entropy(logits, cls, reduction="sum")
    centre = 0.01 * (ra + rb).pow(2).sum()
    loss = nll + centre
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), clip)
    opt.step()
    with torch.no_grad():
        decided = verdict != 0
        agree = ((d.sign() == verdict) & decided).sum() / decided.sum()     # nan if all of them were drawn
        gap = d[decided].abs().mean()
    if step % 3 == 2:
        print(f"{step + 1:3d} nll+centre {loss.item():9.4f} agree {agree.item():.3f} gap {gap.item():.4f} "
              f"norm {norm.item():.3f}")
print("tie weight", round(net.log_tie.exp().item(), 6))

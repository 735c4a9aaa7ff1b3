#!/usr/bin/env python
"""Change ringing: predict the next bell in a peal. Rows get longer as training goes on (curriculum in whole rows).

A tiny causal GRU + learned positions; EMA of the weights is kept inside the optimizer's step.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

BELLS = 6
MAX_ROWS = 8
START_ROWS = 2
GROW_EVERY = 4


class AdamWithAverage(torch.optim.Adam):
    """Adam that keeps an exponential moving average of what it wrote."""

    def __init__(self, *args, average=0.95, **kw):
        super().__init__(*args, **kw)
        self.average = average
        self.shadow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        out = super().step(closure)
        live = (p for g in self.param_groups for p in g["params"])
        for s, p in zip(self.shadow, live):
            s.lerp_(p, 1 - self.average)
        return out


class Ringer(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.bell = nn.Embedding(BELLS, d)
        self.place = nn.Embedding(MAX_ROWS * BELLS, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, BELLS)

    def forward(self, peal):
        places = torch.arange(peal.shape[1])
        x = self.bell(peal) + self.place(places)
        h, _ = self.gru(x)
        return self.out(h)


def plain_hunt(rows, start):
    """Rows of plain hunt on six, from a given first row."""
    row, peal = list(start), []
    for r in range(rows):
        peal += row
        first = r % 2
        row = row[:]
        for i in range(first, BELLS - 1, 2):
            row[i], row[i + 1] = row[i + 1], row[i]
    return peal


def batch(rows, size, gen):
    starts = [torch.randperm(BELLS, generator=gen).tolist() for _ in range(size)]
    return torch.tensor([plain_hunt(rows, s) for s in starts])


def rows_at(step):
    return START_ROWS + (step - 1) // GROW_EVERY


if __name__ == "__main__":
    torch.manual_seed(1668)
    gen = torch.Generator().manual_seed(4)
    net = Ringer()
    opt = AdamWithAverage(net.parameters(), lr=8e-3)
    for step in range(1, 49):
        peal = batch(rows_at(step), 12, gen)
        logits = net(peal[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), peal[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:2d} rows {rows_at(step)} loss {loss.item():.6f}")
    print("averaged weights", sum(s.sum().item() for s in opt.shadow))

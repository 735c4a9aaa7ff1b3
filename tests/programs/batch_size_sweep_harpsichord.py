"""Sweep over the batch size for the plectrum-wear predictor of our harpsichords.

All the models of the sweep are trained in one process, one after the other.  The loss is
1 - Pearson correlation within the batch, since only the order of wear matters to the tuner.
"""
import itertools
from typing import NamedTuple

import torch
import torch.nn as nn

torch.set_num_threads(1)

JACKS = 33
SWEEP = {"batch": [11, 8, 7], "epochs": [3]}


class Trial(NamedTuple):
    batch: int
    epochs: int


class Result(NamedTuple):
    trial: Trial
    model: nn.Module
    curve: list


def trials(space):
    keys = Trial._fields
    for values in itertools.product(*(space[k] for k in keys)):
        yield Trial(*values)


def jacks():
    g = torch.Generator().manual_seed(100)
    x = torch.randn(JACKS, 7, generator=g)
    wear = (x[:, 0] + 0.5 * x[:, 1] ** 2 - x[:, 2]).exp() + 0.1 * torch.rand(JACKS, generator=g)
    return x, wear.log()


def zscore(v):
    centred = v - v.mean()
    n = v.numel()
    var = centred.square().sum() / torch.tensor(float(n - 1))
    return centred / (var + 1e-8).sqrt()


def one_minus_pearson(pred, wear):
    n = pred.numel()
    return 1 - (zscore(pred) * zscore(wear)).sum() / max(n - 1, 1)


def build():
    torch.manual_seed(0)        # each trial starts from the same weights
    return nn.Sequential(nn.Linear(7, 20), nn.ELU(), nn.Linear(20, 1), nn.Flatten(0))


def train(trial, x, wear, counter):
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    order = torch.Generator().manual_seed(trial.batch)
    curve = []
    for epoch in range(trial.epochs):
        for idx in torch.randperm(JACKS, generator=order).split(trial.batch):
            loss = one_minus_pearson(model(x[idx]), wear[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            curve.append(loss.item())
            print(f"#{next(counter):02d} batch={trial.batch:2d} epoch={epoch} 1-r={loss.item():.6f}")
    return Result(trial, model, curve)


def main():
    x, wear = jacks()
    counter = itertools.count(1)
    results = [train(t, x, wear, counter) for t in trials(SWEEP)]
    for r in results:
        tail = r.curve[-3:]
        print(f"trial {r.trial.batch:2d}: mean of the last three {sum(tail) / len(tail):.6f}")
    total = sum(p.detach().double().sum().item() for r in results for p in r.model.parameters())
    print(f"all weights of the sweep: {total:.9f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Estimate the weight of parcels from their outline. The scales write JSON lines, and not always good ones."""
import io
import json
import random

import torch
from torch.utils.data import DataLoader, Dataset

BAD_READINGS = ("NaN", "Infinity", "-Infinity", "null", '"OVERLOAD"')


def logbook(n=480, seed=20):
    rnd = random.Random(seed)
    out = io.StringIO()
    for k in range(n):
        a, b, c = (rnd.uniform(0.1, 1.0) for _ in range(3))
        density = rnd.uniform(0.5, 1.5)
        reading = "%.4f" % (4 * a * b * c * density)
        if 96 <= k < 112 or rnd.random() < 0.15:               # 96..111: scale unplugged
            reading = BAD_READINGS[k % len(BAD_READINGS)]
        line = '{"size": [%.3f, %.3f, %.3f], "belt": %d, "kg": %s}' % (a, b, c, k % 5, reading)
        if rnd.random() < 0.04:
            line = line[:rnd.randrange(len(line))]                # power cut while writing
        out.write(line + "\n")
    return out.getvalue().splitlines()


class Logbook(Dataset):
    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        try:
            rec = json.loads(self.lines[i])
            return torch.tensor(rec["size"]), rec["belt"], float(rec["kg"])
        except (ValueError, TypeError, KeyError):
            return None


def collate(items):
    """Whatever could be parsed; readings that are no number stay in and are left to the caller."""
    items = [it for it in items if it is not None]
    if not items:
        return None
    size, belt, kg = zip(*items)
    return torch.stack(size), torch.tensor(belt), torch.tensor(kg)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.belt = torch.nn.Embedding(5, 4)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(7, 24), torch.nn.GELU(), torch.nn.Linear(24, 1))

    def forward(self, size, belt):
        return self.mlp(torch.cat([size, self.belt(belt)], 1)).squeeze(1)


def run():
    torch.manual_seed(21)
    model = Scale()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loader = DataLoader(Logbook(logbook()), batch_size=16, num_workers=2, collate_fn=collate, prefetch_factor=3)
    for epoch in range(2):
        heaviest = float("-inf")
        for n, batch in enumerate(loader):
            if batch is None:
                print(f"{epoch}.{n:02d} unreadable")
                continue
            size, belt, kg = batch
            usable = torch.isfinite(kg)
            print(f"{epoch}.{n:02d} mean reading {kg.mean().item():.4f}", end=" ")
            if not usable.any():
                print("no usable reading")
                continue
            loss = (model(size, belt)[usable] - kg[usable]).square().mean()
            heaviest = max(heaviest, kg[usable].max().item())
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"usable {int(usable.sum())}/{len(kg)} mse {loss.item():.6f}")
        print(f"epoch {epoch} heaviest {heaviest:.4f}")
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    run()

"""Salinity at the estuary buoys from a CSV; targets are normalised on the fly by an iterator.

The iterator keeps Welford's mean and M2 in numpy, so that nobody has to pass over the file twice.
"""
import csv
import io
import itertools
import math

import numpy as np
import torch
from torch import nn

HEAD = ["flow", "tide", "wind", "salinity"]


def write_csv(rows):
    """What the logger writes; on buoy resets it leaves a hole."""
    rng = np.random.default_rng(1953)
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(HEAD)
    for i in range(rows):
        flow, wind = rng.gamma(2.0, 1.0), rng.normal()
        tide = math.sin(i / 6.2)
        psu = 18 - 3 * flow + 5 * tide + 0.4 * wind + rng.normal() * 0.3
        out.writerow([f"{flow:.4f}", f"{tide:.4f}", f"{wind:.4f}", "" if i == 187 else f"{psu:.3f}"])
    text.seek(0)
    return text


def number(cell):
    return float(cell) if cell.strip() else math.nan


class Records:
    def __init__(self, handle):
        self.reader = csv.DictReader(handle)

    def __iter__(self):
        for row in self.reader:
            yield np.array([number(row[h]) for h in HEAD], dtype=np.float64)


class Normalised:
    """Yields (x, z) with z = (y - mean so far) / (std so far)."""

    def __init__(self, batches, burn_in=2):
        self.batches, self.burn_in = iter(batches), burn_in
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def update(self, y):
        for v in y:
            self.n += 1
            d = v - self.mean
            self.mean += d / self.n
            self.m2 += d * (v - self.mean)

    @property
    def std(self):
        return np.sqrt(self.m2 / max(self.n - 1, 1)) + 1e-3

    def __iter__(self):
        return self

    def __next__(self):
        block = np.stack(next(self.batches))
        x, y = block[:, :-1], block[:, -1]
        self.update(y)
        if self.burn_in > 0:
            self.burn_in -= 1
            return next(self)
        z = (y - self.mean) / self.std
        return torch.from_numpy(x).float(), torch.from_numpy(z).float()


def batched(it, size):
    it = iter(it)
    while len(block := list(itertools.islice(it, size))) == size:
        yield block


def main():
    torch.manual_seed(53)
    net = nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 1), nn.Flatten(0))
    opt = torch.optim.Adam(net.parameters(), lr=1.5e-2)
    stream = Normalised(batched(Records(write_csv(480)), 8))
    for step, (x, z) in enumerate(stream, 1):
        loss = nn.functional.smooth_l1_loss(net(x), z)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d}  {loss.item():.6f}")
    print("weights:", sum(p.double().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()

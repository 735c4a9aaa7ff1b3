"""Embeddings of jay and crow calls, trained with batch-hard triplets (P species x K calls per batch)."""
import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

parser = argparse.ArgumentParser()
parser.add_argument("--species", type=int, default=9)
parser.add_argument("--calls", type=int, default=24, help="calls per species")
parser.add_argument("--p", type=int, default=4)
parser.add_argument("--k", type=int, default=4)
parser.add_argument("--steps", type=int, default=54)
parser.add_argument("--margin", type=float, default=0.3)


class CallLibrary(Dataset):
    """Every call is a little spectrogram: 24 bands x 20 frames, chirps whose slope belongs to the species."""

    def __init__(self, species, calls):
        g = torch.Generator().manual_seed(77)
        bands = torch.arange(24.0)[:, None]
        frames = torch.arange(20.0)[None]
        self.items = []
        for s in range(species):
            for _ in range(calls):
                start = 3 + 2 * s + torch.randn(1, generator=g)
                slope = 0.5 * ((s % 3) - 1) + 0.05 * torch.randn(1, generator=g)
                ridge = torch.exp(-0.5 * (bands - start - slope * frames) ** 2)
                self.items.append((ridge + 0.15 * torch.rand(24, 20, generator=g), s))
        # some uploads came in twice
        for i in range(0, len(self.items), 17):
            self.items.append(self.items[i])

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class SpeciesBatches(Sampler):
    def __init__(self, library, p, k, n):
        self.by = {}
        for i, (_, s) in enumerate(library.items):
            self.by.setdefault(s, []).append(i)
        self.p, self.k, self.n = p, k, n
        self.rng = random.Random(5)

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            batch = []
            for s in self.rng.sample(sorted(self.by), self.p):
                batch += self.rng.sample(self.by[s], self.k)
            yield batch


class Embedder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(24, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 3), nn.ReLU())
        self.head = nn.Linear(32, dim)

    def forward(self, x):
        h = self.conv(x).amax(-1)
        return nn.functional.normalize(self.head(h), dim=-1)


def distances(e):
    sq = (e[:, None] - e[None]).pow(2).sum(-1)
    same_point = sq == 0
    # the diagonal and the double uploads: a root of one instead, then back to nought
    return torch.where(same_point, torch.zeros_like(sq), torch.where(same_point, torch.ones_like(sq), sq).sqrt())


def batch_hard(e, species, margin):
    d = distances(e)
    same = species[:, None] == species[None]
    hardest_pos = d.masked_fill(~same, float("-inf")).amax(1)
    hardest_neg = d.masked_fill(same, float("inf")).amin(1)
    violation = torch.relu(hardest_pos - hardest_neg + margin)
    return violation.mean(), violation


def main():
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    lib = CallLibrary(a.species, a.calls)
    loader = DataLoader(lib, batch_sampler=SpeciesBatches(lib, a.p, a.k, a.steps))
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for step, (x, s) in enumerate(loader, 1):
        e = net(x)
        loss, violation = batch_hard(e, s, a.margin)
        opt.zero_grad()
        loss.backward()
        opt.step()
        active = violation[violation > 0]
        # with no active triplet at all the mean of the active ones is nan, and that is fine: nothing was violated
        print(f"step {step:3d} loss {loss.item():.7f} active {active.numel():2d} "
              f"mean active {active.mean().item():.6f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

"""Embed species in R^d so that squared distances match evolutionary distances (Jukes-Cantor).

Follows the idea of "learning phylogenies as additive metrics": squared euclidean
distance in a high enough space is a tree metric.
"""
import numpy as np
import torch
from torch import nn

NAMES = ["human", "chimp", "gorilla", "orang", "gibbon", "macaque", "baboon",
         "marmoset", "capuchin", "tarsier", "lemur", "loris"]
SITES = 240


def evolve(rng, parent, rate):
    child = parent.copy()
    hit = rng.random(len(parent)) < rate
    child[hit] = rng.integers(0, 4, hit.sum())
    return child


def make_alignment(seed):
    rng = np.random.default_rng(seed)
    root = rng.integers(0, 4, SITES)
    rows, current = [], root
    for k, _ in enumerate(NAMES[:-1]):
        rows.append(evolve(rng, current, 0.04 + 0.015 * k))
        current = evolve(rng, current, 0.10)
    # loris: low coverage, every third site is a guess
    rows.append(evolve(rng, current, 0.72))
    return torch.tensor(np.stack(rows))


class SpeciesMap(nn.Module):
    def __init__(self, n, dim=8):
        super().__init__()
        self.points = nn.Embedding(n, dim)
        nn.init.normal_(self.points.weight, std=0.15)
        self.offset = nn.Parameter(torch.zeros(n))

    def forward(self, i, j):
        gap = self.points(i) - self.points(j)
        tips = nn.functional.softplus(self.offset - 4)
        return (gap * gap).sum(-1) + tips[i] + tips[j]


def jukes_cantor(a, b):
    p = (a != b).float().mean(-1)
    return -0.75 * torch.log1p(-4.0 * p / 3.0)


def main():
    torch.manual_seed(11)
    seqs = make_alignment(seed=SEED)
    i, j = torch.triu_indices(len(NAMES), len(NAMES), offset=1)
    order = torch.randperm(len(i), generator=torch.Generator().manual_seed(4))
    i, j = i[order], j[order]

    model = SpeciesMap(len(NAMES))
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    step = 0
    for epoch in range(2):
        for lo in range(0, len(i), 6):
            a, b = i[lo:lo + 6], j[lo:lo + 6]
            dist = jukes_cantor(seqs[a], seqs[b])
            loss = nn.functional.mse_loss(model(a, b), dist)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            print(f"epoch {epoch} step {step:2d} loss {loss.item():.5f}")
    print("|theta|^2 =", sum(p.detach().pow(2).sum() for p in model.parameters()).item())


SEED = 27

if __name__ == "__main__":
    main()

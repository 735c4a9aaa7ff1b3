"""Who swaps which stamp with whom: BPR on implicit feedback, sparse tables and a dense tower.

Tables: SparseAdam.  Tower: AdamW.  Rare stamps get a popularity-scaled penalty once the tables have settled.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    collectors: int = 120
    stamps: int = 300
    dim: int = 12
    batch: int = 64
    steps: int = 50
    settle: int = 21          # steps without penalty
    penalty: float = 1e-4
    seed: int = 1840


class Tables(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.collector = nn.Embedding(c.collectors, c.dim, sparse=True)
        self.stamp = nn.Embedding(c.stamps, c.dim, sparse=True)
        for e in (self.collector, self.stamp):
            nn.init.normal_(e.weight, std=0.1)


class Tower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(3 * c.dim, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, u, s):
        return self.mix(torch.cat([u, s, u * s], -1)).squeeze(-1) + (u * s).sum(-1)


class Swaps:
    """Stamps have a zipfian popularity; collectors prefer a country (id modulo 6)."""

    def __init__(self, c):
        self.c = c
        self.g = torch.Generator().manual_seed(c.seed)
        self.pop = 1.0 / torch.arange(1, c.stamps + 1).float()

    def draw(self):
        c, g = self.c, self.g
        who = torch.randint(c.collectors, (c.batch,), generator=g)
        raw = torch.multinomial(self.pop, c.batch, replacement=True, generator=g)
        liked = (raw // 6 * 6 + who % 6).clamp(max=c.stamps - 1)
        other = torch.randint(c.stamps, (c.batch,), generator=g)
        return who, liked, other

    @property
    def rarity(self):
        return (self.pop.max() / self.pop).log1p()


def rare_penalty(table, rarity):
    return (rarity[:, None] * table.weight ** 2).sum()


def main():
    c = Config()
    torch.manual_seed(c.seed)
    tables, tower, swaps = Tables(c), Tower(c), Swaps(c)
    sparse_opt = torch.optim.SparseAdam(list(tables.parameters()), lr=0.02)
    dense_opt = torch.optim.AdamW(tower.parameters(), lr=5e-3)
    optimizers = (dense_opt, sparse_opt)

    for step in range(1, c.steps + 1):
        who, liked, other = swaps.draw()
        u = tables.collector(who)
        margin = tower(u, tables.stamp(liked)) - tower(u, tables.stamp(other))
        loss = F.softplus(-margin).mean()
        if step > c.settle:
            loss = loss + c.penalty * rare_penalty(tables.stamp, swaps.rarity)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        print(f"step {step:02d} bpr {loss.item():.6f} auc {(margin > 0).float().mean().item():.4f}")

    total = sum(p.detach().sum() for m in (tables, tower) for p in m.parameters())
    print("sum of weights", total.item())


if __name__ == "__main__":
    main()

"""Which toy will a family take home next? Sampled softmax, with rivals from the same shelf of the toy library.

Rivals on the shelf are harder than rivals from the whole house. They are drawn by popularity; the toy that was
really taken can't be its own rival. Tables are sparse, the tower is dense: two optimizers.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F


class Catalogue:
    def __init__(self, gen: torch.Generator, toys: int = 300, shelves: int = 14):
        self.shelf_of = torch.arange(toys) % (shelves - 1)
        self.shelf_of[-1] = shelves - 1  # the rocking horse stands alone, it needs the space
        self.popularity = torch.rand(toys, generator=gen).pow(3) + 0.01
        self.toys = toys

    def shelf_weights(self, taken: torch.Tensor) -> torch.Tensor:
        same = self.shelf_of[taken][:, None] == self.shelf_of[None, :]
        weights = same * self.popularity
        weights.scatter_(1, taken[:, None], 0.0)
        return weights


class TwoTower(nn.Module):
    def __init__(self, families: int, toys: int, dim: int = 16):
        super().__init__()
        self.family = nn.Embedding(families, dim, sparse=True)
        self.toy = nn.Embedding(toys, dim, sparse=True)
        self.tower = nn.Sequential(nn.Linear(dim + 2, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, family, age, toys):
        q = self.tower(torch.cat([self.family(family), age], -1))
        return torch.einsum("bd,bkd->bk", q, self.toy(toys))


def loans(gen, cat, families, steps, batch) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    taste = torch.randn(families, 4, generator=gen)
    trait = torch.randn(cat.toys, 4, generator=gen)
    demand = cat.popularity.clone()
    demand[-1] = 0.0
    for step in range(1, steps + 1):
        who = torch.randint(0, families, (batch,), generator=gen)
        score = (taste[who] @ trait.T).softmax(-1) * demand
        taken = torch.multinomial(score, 1, generator=gen).squeeze(1)
        if step == 21:
            taken[9] = cat.toys - 1  # first loan of the rocking horse this year
        age = torch.rand(batch, 2, generator=gen)
        yield who, age, taken


def sample_rivals(cat: Catalogue, taken: torch.Tensor, k: int, gen: torch.Generator) -> torch.Tensor:
    weights = cat.shelf_weights(taken)
    return torch.multinomial(weights, k, replacement=True, generator=gen)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--families", type=int, default=120)
    p.add_argument("--steps", type=int, default=45)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--rivals", type=int, default=10)
    o = p.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(77)
    cat = Catalogue(gen)
    net = TwoTower(o.families, cat.toys)
    sparse = torch.optim.SparseAdam([net.family.weight, net.toy.weight], lr=2e-2)
    dense = torch.optim.Adam(net.tower.parameters(), lr=5e-3)
    for step, (who, age, taken) in enumerate(loans(gen, cat, o.families, o.steps, o.batch), start=1):
        rivals = sample_rivals(cat, taken, o.rivals, gen)
        logits = net(who, age, torch.cat([taken[:, None], rivals], 1))
        loss = F.cross_entropy(logits, torch.zeros(len(who), dtype=torch.long))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        print(f"{step:3d} sampled softmax {loss.item():.8f}", flush=True)
    print(f"{sum(w.detach().abs().sum().item() for w in net.parameters()):.6f}")


if __name__ == "__main__":
    main()

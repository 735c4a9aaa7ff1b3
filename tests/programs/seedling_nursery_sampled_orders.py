"""Next-order recommendation for a plant nursery: pooled history, sampled softmax, row-wise Adagrad of our own."""
from __future__ import annotations

import math
import random
from typing import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0
PLANTS = 400
HISTORY = 8
NEGATIVES = 40


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per embedding row; only the rows that were looked up are touched."""

    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, dict(lr=lr))
        self.touched: dict[int, torch.Tensor] = {}

    def touch(self, param: torch.Tensor, ids: torch.Tensor) -> None:
        self.touched[id(param)] = ids.flatten().unique()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                rows = self.touched.get(id(p))
                if rows is None:
                    rows = torch.arange(len(p))
                state = self.state[p]
                if "sum" not in state:
                    state["sum"] = torch.zeros(len(p))
                g = p.grad[rows]
                state["sum"][rows] += g.square().mean(1)
                scaled = g / state["sum"][rows].sqrt().unsqueeze(1)
                p[rows] -= group["lr"] * scaled


class OrderModel(nn.Module):
    def __init__(self, dim: int = 24):
        super().__init__()
        self.history = nn.Embedding(PLANTS + 1, dim, padding_idx=PAD)
        self.plants = nn.Embedding(PLANTS + 1, dim)
        self.mix = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.plants.weight, std=0.1)

    def forward(self, past, target, negatives, log_expected):
        seen = (past != PAD).unsqueeze(-1)
        pooled = (self.history(past) * seen).sum(1) / seen.sum(1)
        user = self.mix(pooled)
        positive = (user * self.plants(target)).sum(-1, keepdim=True)
        others = user @ self.plants(negatives).T - log_expected
        others = others.masked_fill(negatives[None, :] == target[:, None], -math.inf)     # accidental hits
        logits = torch.cat([positive, others], 1)
        return F.cross_entropy(logits, torch.zeros(len(target), dtype=torch.long))


def customers(n: int, rng: random.Random) -> list[tuple[list[int], int]]:
    out = []
    for _ in range(n):
        bed = rng.randrange(20)
        pick = lambda: 1 + bed * 20 + min(int(rng.expovariate(0.25)), 19)
        orders = [pick() for _ in range(rng.choice([3, 5, 6, 9, 9, 10, 12, 14]))]
        out.append((orders[:-1][-HISTORY:], orders[-1]))
    return out


def batches(rows: list, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """customers with the longest histories first, so that memory shows its worst at once"""
    rows = sorted(rows, key=lambda r: -len(r[0]))
    for start in range(0, len(rows) - size + 1, size):
        part = rows[start:start + size]
        width = max(len(h) for h, _ in part)
        past = torch.tensor([h + [PAD] * (width - len(h)) for h, _ in part])
        yield past, torch.tensor([t for _, t in part])


def main() -> None:
    rng = random.Random(40)
    torch.manual_seed(41)
    model = OrderModel()
    optimizer = RowAdagrad(model.parameters(), lr=0.05)
    rows = customers(1400, rng)
    popularity = torch.ones(PLANTS + 1)
    popularity[PAD] = 0.0
    for _, target in rows:
        popularity[target] += 1
    share = popularity / popularity.sum()
    for step, (past, target) in enumerate(batches(rows, 40), 1):
        negatives = torch.multinomial(share, NEGATIVES, replacement=False)
        loss = model(past, target, negatives, torch.log(share[negatives] * NEGATIVES))
        optimizer.zero_grad()
        loss.backward()
        optimizer.touch(model.history.weight, past)
        optimizer.touch(model.plants.weight, torch.cat([target, negatives]))
        print(f"batch {step:2d}  width {past.shape[1]}  loss {loss.item():.6f}", flush=True)
        optimizer.step()
    print(f"sum of weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()

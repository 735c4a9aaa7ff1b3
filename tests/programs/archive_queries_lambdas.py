"""LambdaRank for the search box of a city archive."""
import functools
from typing import Iterator, NamedTuple

import numpy as np
import torch
from torch import nn, optim


class Query(NamedTuple):
    qid: int
    feats: torch.Tensor
    rel: torch.Tensor


LOSSES = {}


def register(name):
    def deco(fn):
        LOSSES[name] = fn
        return fn
    return deco


@functools.lru_cache(maxsize=None)
def discounts(n: int) -> torch.Tensor:
    return 1.0 / torch.log2(torch.arange(n, dtype=torch.float32) + 2.0)


@register("lambdarank")
def lambda_rank(scores, rel, sigma=1.0):
    n = len(rel)
    gain = torch.pow(2.0, rel) - 1.0
    ideal = (torch.sort(gain, descending=True).values * discounts(n)).sum()
    rank = torch.empty(n, dtype=torch.long)
    rank[torch.argsort(scores.detach(), descending=True)] = torch.arange(n)
    disc = discounts(n)[rank]
    swap = (gain[:, None] - gain[None, :]).abs() * (disc[:, None] - disc[None, :]).abs()
    delta_ndcg = swap / ideal
    pair = nn.functional.softplus(-sigma * (scores[:, None] - scores[None, :]))
    better = (rel[:, None] > rel[None, :]).float()
    return (better * delta_ndcg * pair).sum()


@register("listnet")
def list_net(scores, rel):
    return -(torch.softmax(rel, 0) * torch.log_softmax(scores, 0)).sum()


def judged_queries(n: int, seed: int) -> Iterator[Query]:
    """Five grades, 0..4, from the archivists. At least one hit for each query, they said."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=14)
    for qid in range(n):
        docs = int(rng.integers(6, 25))
        x = rng.normal(size=(docs, 14))
        z = x @ w / 2 + 0.5 * rng.normal(size=docs)
        rel = np.digitize(z, [0.0, 0.9, 1.8, 2.8])
        rel[z.argmax()] = max(rel.max(), 1)
        if qid == 101:                        # "tram depot fire 1911": nothing was found after all
            rel[:] = 0
        yield Query(qid, torch.tensor(x, dtype=torch.float32), torch.tensor(rel, dtype=torch.float32))


class Scorer(nn.Module):
    def __init__(self, d=14, h=32):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.one, self.two = nn.Linear(d, h), nn.Linear(h, 1)

    def forward(self, x):
        return self.two(torch.relu(self.one(self.norm(x)))).squeeze(-1)


def train(per_step=4, warm=5, steps=40):
    torch.manual_seed(19)
    model = Scorer()
    opt = optim.Adagrad(model.parameters(), lr=0.02)
    queries = list(judged_queries(per_step * steps, seed=19))
    for step in range(steps):
        name = "listnet" if step < warm else "lambdarank"     # listwise first, it is smoother
        opt.zero_grad()
        total = 0.0
        for q in queries[step * per_step:(step + 1) * per_step]:
            loss = LOSSES[name](model(q.feats), q.rel) / per_step
            loss.backward()
            total += loss.item()
        opt.step()
        print(f"{step + 1:>3} {name:<10} {total:.6f}")
    return model


if __name__ == "__main__":
    m = train()
    print("end", sum(p.detach().sum().item() for p in m.parameters()))

"""Query/product towers for a tea catalogue: cosine similarity over a temperature that is cooled along half a cosine."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(31)

TEAS, QUERY_WORDS, PRODUCT_WORDS = 64, 50, 70
STEPS, COOLING, BATCH = 48, 40, 16
HOT = 0.25


class Tower(nn.Module):
    def __init__(self, words, width=32, out=24):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, out))

    def forward(self, ids):
        return F.normalize(self.mlp(self.bag(ids)), dim=-1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = Tower(QUERY_WORDS)
        self.product = Tower(PRODUCT_WORDS)

    def forward(self, q, p):
        return self.query(q) @ self.product(p).T


def temperature(step):
    """HOT at first, then down along a half cosine until COOLING, and held there."""
    t = min(step, COOLING) / COOLING
    return HOT * 0.5 * (1.0 + math.cos(math.pi * t))


def catalogue(g):
    products = torch.randint(0, PRODUCT_WORDS, (TEAS, 9), generator=g)
    queries = torch.randint(0, QUERY_WORDS, (TEAS, 4), generator=g)
    return queries, products


def batches(g):
    queries, products = catalogue(g)
    while True:
        order = torch.randperm(TEAS, generator=g)
        for i in range(0, TEAS, BATCH):
            rows = order[i:i + BATCH]
            q = queries[rows].clone()
            drop = torch.rand(q.shape, generator=g) < 0.2               # customers mistype
            q[drop] = torch.randint(0, QUERY_WORDS, (int(drop.sum()),), generator=g)
            yield q, products[rows]


@torch.no_grad()
def recall_at_one(model, q, p):
    return (model(q, p).argmax(1) == torch.arange(len(q))).float().mean().item()


model = Pair()
average = Pair()
average.load_state_dict(model.state_dict())
average.requires_grad_(False)
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
stream = batches(torch.Generator().manual_seed(2))
target = torch.arange(BATCH)

for step in range(1, STEPS + 1):
    q, p = next(stream)
    similarity = model(q, p)
    logits = similarity / temperature(step)
    loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(average.parameters(), model.parameters()):
            a.lerp_(b, 0.05)
    print(f"{step} {loss.item():.6f} temperature {temperature(step):.5f} recall {recall_at_one(average, q, p):.3f}", flush=True)

print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)

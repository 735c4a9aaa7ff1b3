"""Wishlist retrieval for a jigsaw-puzzle shop: sparse embeddings, SparseAdam, sampled softmax.

The number of negatives doubles in stages, and negatives that the customer already wishes for
are struck out of the softmax.
"""
import argparse
import random

import torch
from torch import nn

STAGES = ((1, 4), (15, 16), (29, 64), (39, 200))


class WishlistTower(nn.Module):
    def __init__(self, puzzles, brands, dim):
        super().__init__()
        self.history = nn.EmbeddingBag(puzzles, dim, mode="mean", sparse=True)
        self.puzzle = nn.Embedding(puzzles, dim, sparse=True)
        self.popularity = nn.Embedding(puzzles, 1, sparse=True)
        self.brand = nn.Embedding(brands, dim)
        self.mix = nn.Linear(2 * dim, dim)
        nn.init.normal_(self.history.weight, std=0.1)
        nn.init.normal_(self.puzzle.weight, std=0.1)
        nn.init.zeros_(self.popularity.weight)

    def customer(self, flat, offsets, brand):
        bag = self.history(flat, offsets)         # a new customer has an empty bag: zeros
        return torch.tanh(self.mix(torch.cat([bag, self.brand(brand)], dim=1)))

    def score(self, who, items):
        return (who.unsqueeze(1) * self.puzzle(items)).sum(-1) + self.popularity(items).squeeze(-1)


def make_customers(n, puzzles, rng):
    customers = []
    for i in range(n):
        theme = rng.randrange(8)
        liked = [p for p in range(theme, puzzles, 8)]
        wishes = rng.sample(liked, k=rng.choice([1, 1, 3, 5, 9]))
        customers.append((theme % 5, wishes))
    return customers


def batch_of(customers, rng, size):
    flat, offsets, brand, positive, owned = [], [], [], [], []
    for b, wishes in rng.sample(customers, size):
        target = rng.choice(wishes)
        past = [w for w in wishes if w != target]
        offsets.append(len(flat))
        flat += past
        brand.append(b)
        positive.append(target)
        owned.append(set(wishes))
    as_long = lambda v: torch.tensor(v, dtype=torch.long)
    return as_long(flat), as_long(offsets), as_long(brand), as_long(positive), owned


def negatives_at(step):
    return [k for first, k in STAGES if step >= first][-1]


def main(args):
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    customers = make_customers(300, args.puzzles, rng)
    model = WishlistTower(args.puzzles, 5, args.dim)
    tables = [model.history.weight, model.puzzle.weight, model.popularity.weight]
    dense = list(model.brand.parameters()) + list(model.mix.parameters())
    opt_sparse = torch.optim.SparseAdam(tables, lr=0.02)
    opt_dense = torch.optim.Adagrad(dense, lr=0.05)
    for step in range(1, args.steps + 1):
        flat, offsets, brand, positive, owned = batch_of(customers, rng, 48)
        k = negatives_at(step)
        drawn = torch.tensor([[rng.randrange(args.puzzles) for _ in range(k)] for _ in owned])
        collide = torch.tensor([[d in own for d in row] for row, own in zip(drawn.tolist(), owned)])
        who = model.customer(flat, offsets, brand)
        items = torch.cat([positive.unsqueeze(1), drawn], dim=1)
        strike = torch.cat([torch.zeros(len(owned), 1, dtype=torch.bool), collide], dim=1)
        logits = model.score(who, items).masked_fill(strike, float("-inf"))
        loss = -torch.log_softmax(logits, dim=1)[:, 0].mean()
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        opt_sparse.step()
        opt_dense.step()
        print(f"step {step} negatives {k} struck {int(collide.sum())} loss {loss.item():.6f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum() for p in model.parameters()).item():.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=46)
    ap.add_argument("--puzzles", type=int, default=400)
    ap.add_argument("--dim", type=int, default=16)
    ap.add_argument("--seed", type=int, default=77)
    main(ap.parse_args())

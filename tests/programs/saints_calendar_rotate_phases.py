"""RotatE for a knowledge graph of saints, feasts and places: h * exp(i theta_r) should land on t."""
import argparse
import math
import random

import torch
from torch import nn
import torch.nn.functional as F

RELATIONS = ["patron_of", "feast_in", "born_at", "companion_of", "buried_at", "same_as"]


def triples(n_entities, n, rng):
    """In order of entry. The editors add `same_as` when they merge two sources."""
    out = []
    for k in range(n):
        h = rng.randrange(n_entities)
        r = rng.randrange(len(RELATIONS) - 1)
        t = (h * (r + 2) + 3 * r + 1) % n_entities
        if t == h:
            t = (h + 1) % n_entities
        out.append((h, r, t))
    out[331] = (14, RELATIONS.index("same_as"), 14)     # the merge of an entry with itself
    return out


class RotatE(nn.Module):
    def __init__(self, n_entities, n_relations, dim, gamma):
        super().__init__()
        self.dim, self.gamma = dim, gamma
        bound = (gamma + 2.0) / dim
        self.entity = nn.Embedding(n_entities, 2 * dim)
        self.phase = nn.Embedding(n_relations, dim)
        nn.init.uniform_(self.entity.weight, -bound, bound)
        nn.init.zeros_(self.phase.weight)               # every relation begins as the identity

    def forward(self, h, r, t):
        h_re, h_im = self.entity(h).chunk(2, -1)
        t_re, t_im = self.entity(t).chunk(2, -1)
        theta = self.phase(r)
        cos, sin = torch.cos(theta), torch.sin(theta)
        d_re = h_re * cos - h_im * sin - t_re
        d_im = h_re * sin + h_im * cos - t_im
        modulus = torch.sqrt(d_re**2 + d_im**2)
        return self.gamma - modulus.sum(-1)


def self_adversarial(pos, neg, temperature):
    with torch.no_grad():
        w = F.softmax(temperature * neg, dim=-1)
    return -0.5 * (F.logsigmoid(pos).mean() + (w * F.logsigmoid(-neg)).sum(-1).mean())


def corrupt(h, t, n_entities, n_neg, g):
    """other tails; never the true tail, never the head"""
    neg = torch.randint(0, n_entities, (len(h), n_neg), generator=g)
    while True:
        clash = (neg == t[:, None]) | (neg == h[:, None])
        if not clash.any():
            return neg
        neg[clash] = torch.randint(0, n_entities, (int(clash.sum()),), generator=g)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--entities", type=int, default=60)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--gamma", type=float, default=6.0)
    p.add_argument("--micro", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--negatives", type=int, default=6)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()

    torch.manual_seed(3)
    facts = triples(args.entities, 16 * 32, random.Random(3))
    model = RotatE(args.entities, len(RELATIONS), args.dim, args.gamma)
    opt = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(8)
    block = args.micro * args.accumulate
    for step in range(1, len(facts) // block + 1):
        opt.zero_grad()
        total = 0.0
        for m in range(args.accumulate):
            lo = (step - 1) * block + m * args.micro
            h, r, t = torch.tensor(facts[lo:lo + args.micro]).T
            neg_t = corrupt(h, t, args.entities, args.negatives, g)
            pos = model(h, r, t)
            neg = model(h[:, None].expand_as(neg_t), r[:, None].expand_as(neg_t), neg_t)
            loss = self_adversarial(pos, neg, 1.0) / args.accumulate
            loss.backward()
            total += loss.item()
        opt.step()
        angle = model.phase.weight.detach().remainder(2 * math.pi)
        print(f"{step}\t{total:.7f}", flush=True)
    print(f"{sum(w.abs().sum().item() for w in model.parameters()):.6f}", flush=True)

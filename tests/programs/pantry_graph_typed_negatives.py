"""Embeddings of a pantry's knowledge graph (RotatE scores, self-adversarial and type-constrained negatives)."""
import math
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

FOODS = ["flour", "rice", "oats", "lentils", "honey", "vinegar", "butter", "eggs", "milk", "yeast", "onions",
         "apples", "carrots", "cheese", "tea", "cocoa", "raisins", "mustard", "pickles", "jam", "salt"]
PLACES = ["cellar", "larder", "fridge", "cupboard"]
SHELVES = ["top", "middle", "bottom", "door", "crate"]
DISHES = ["bread", "stew", "porridge", "salad", "cake", "soup", "pie", "omelette", "chutney", "pudding"]
ENTITIES = FOODS + PLACES + SHELVES + DISHES
INDEX = {e: i for i, e in enumerate(ENTITIES)}
RELATIONS = {"stored_in": PLACES, "lies_on": SHELVES, "goes_into": DISHES, "traded_for": FOODS}
REL = {r: i for i, r in enumerate(RELATIONS)}
N_NEG = 6


def take_inventory(gen):
    """Triples in the order in which the household wrote them down, category by category."""
    def some(pool, k):
        return [pool[i] for i in torch.randperm(len(pool), generator=gen)[:k].tolist()]

    facts = []
    for food in FOODS:
        # salt is kept wherever somebody cooks or cures
        places = PLACES if food == "salt" else some(PLACES, 1)
        lines = [(food, "stored_in", p) for p in places]
        lines += [(food, "lies_on", s) for s in some(SHELVES, 2)]
        lines += [(food, "goes_into", d) for d in some(DISHES, 4)]
        lines += [(food, "traded_for", f) for f in some([g for g in FOODS if g != food], 3)]
        facts += lines
    order = torch.randperm(len(facts), generator=gen).tolist()
    return [(INDEX[h], REL[r], INDEX[t]) for h, r, t in (facts[i] for i in order)]


class RotatE(nn.Module):
    def __init__(self, n_entities, n_relations, dim=20, margin=4.0):
        super().__init__()
        self.margin = margin
        self.entity = nn.Embedding(n_entities, 2 * dim)
        self.phase = nn.Embedding(n_relations, dim)
        nn.init.uniform_(self.entity.weight, -0.4, 0.4)
        nn.init.uniform_(self.phase.weight, -math.pi, math.pi)

    def forward(self, h, r, t):
        """Scores of shape (batch, candidates) for tails t of shape (batch, candidates)."""
        re_h, im_h = self.entity(h).chunk(2, -1)
        re_t, im_t = self.entity(t).chunk(2, -1)
        angle = self.phase(r)
        re = re_h * angle.cos() - im_h * angle.sin()
        im = re_h * angle.sin() + im_h * angle.cos()
        distance = ((re[:, None] - re_t).square() + (im[:, None] - im_t).square() + 1e-9).sqrt().sum(-1)
        return self.margin - distance


class NegativeSampler:
    """Draws tails of the right type; those that are facts themselves are marked, not drawn again."""

    def __init__(self, facts, gen):
        self.gen = gen
        self.known = defaultdict(set)
        for h, r, t in facts:
            self.known[h, r].add(t)
        self.pool = [torch.tensor([INDEX[e] for e in names]) for names in RELATIONS.values()]

    def __call__(self, h, r):
        tails, fact = [], []
        for a, b in zip(h.tolist(), r.tolist()):
            pool = self.pool[b]
            drawn = pool[torch.randint(len(pool), (N_NEG,), generator=self.gen)]
            tails.append(drawn)
            fact.append(torch.tensor([x in self.known[a, b] for x in drawn.tolist()]))
        return torch.stack(tails), torch.stack(fact)


def loss_of(model, h, r, t, sampler, heat=0.7):
    positive = model(h, r, t[:, None]).squeeze(1)
    tails, fact = sampler(h, r)
    barred = torch.zeros(tails.shape).masked_fill(fact, float("-inf"))
    negative = model(h, r, tails) + barred
    weight = torch.softmax(heat * negative.detach(), dim=-1)
    pushed = weight * F.logsigmoid(-negative)
    return -(F.logsigmoid(positive) + pushed.sum(-1)).mean() / 2


def main():
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(23)
    facts = take_inventory(gen)
    sampler = NegativeSampler(facts, gen)
    model = RotatE(len(ENTITIES), len(RELATIONS))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.15)
    triples, step = torch.tensor(facts), 0
    print(f"{len(facts)} facts", flush=True)
    for epoch in range(2):
        for rows in triples.split(8):
            step += 1
            h, r, t = rows.unbind(1)
            loss = loss_of(model, h, r, t, sampler)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} step {step:2d} loss {loss.item():.8f}", flush=True)
    print(f"{model.entity.weight.abs().sum().item() + model.phase.weight.abs().sum().item():.6f}", flush=True)


main()

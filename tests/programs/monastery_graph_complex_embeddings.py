import random
from collections import defaultdict

import torch
import torch.nn.functional as F

# Who founded, visited, owned and copied from whom: a knowledge graph of invented monasteries, ComplEx scores.

random.seed(77)
torch.manual_seed(77)
RELATIONS = ["founded_by", "daughter_of", "copied_from", "visited"]
HOUSES = ["abbey_%02d" % i for i in range(30)]
WIDTH = 10
order_of = {h: i % 5 for i, h in enumerate(HOUSES)}


def invent():
    triples = set()
    while len(triples) < 260:
        h, t = random.sample(range(30), 2)
        r = random.randrange(4)
        if (order_of[HOUSES[h]] + r) % 5 == order_of[HOUSES[t]] or random.random() < .04:
            triples.add((h, r, t))
    return sorted(triples)


triples = invent()
random.shuffle(triples)
known, held_out = triples[:240], triples[240:]
answers = defaultdict(set)
for h, r, t in triples:
    answers[h, r].add(t)

houses = torch.nn.Embedding(30, 2 * WIDTH, sparse=True)
links = torch.nn.Embedding(4, 2 * WIDTH)
with torch.no_grad():
    houses.weight.mul_(.3)
    links.weight.mul_(.3)
for_houses = torch.optim.SparseAdam(houses.parameters(), lr=.03)
for_links = torch.optim.Adagrad(links.parameters(), lr=.1)


def cut(z):
    return torch.complex(z[..., :WIDTH], z[..., WIDTH:])


def scores(h, r):
    query = cut(houses(h)) * cut(links(r))
    everything = cut(houses(torch.arange(30)))
    return (query @ everything.conj().T).real


def filtered(raw, batch):
    """Other true answers do not count as negatives, and nobody is his own answer."""
    mask = torch.zeros_like(raw)
    for row, (h, r, t) in enumerate(batch):
        others = [o for o in answers[h, r] | {h} if o != t]
        mask[row, others] = float("-inf")
    return raw + mask


def batches(size):
    while True:
        shuffled = random.sample(known, len(known))
        for i in range(0, len(shuffled), size):
            yield shuffled[i:i + size]


def ranks(rows):
    with torch.no_grad():
        h, r, t = torch.tensor(rows).T
        s = filtered(scores(h, r), rows)
        return (s >= s.gather(1, t[:, None])).sum(1).float()


best = float("inf")
stream = batches(30)
for step in range(1, 41):
    batch = next(stream)
    h, r, t = torch.tensor(batch).T
    for_houses.zero_grad()
    for_links.zero_grad()
    s = filtered(scores(h, r), batch)
    loss = F.cross_entropy(s, t)
    cubes = cut(houses(t)).abs().pow(3).sum() / len(batch)
    (loss + 0.01 * cubes).backward()
    for_houses.step()
    if step % 2 == 0:
        for_links.step()
    if step % 10 == 0:
        houses.weight.data.copy_(torch.renorm(houses.weight.data, 2, 0, 2.5))
        best = min(best, ranks(held_out).mean().item())
    print(f"{step:>3} nll {loss.item():.4f} cubes {cubes.item():.4f} best mean rank {best:.2f} lowest score {s.min().item():.1f}")

print("weights, squared and summed: %.6f" % (houses.weight.square().sum() + links.weight.square().sum()).item())

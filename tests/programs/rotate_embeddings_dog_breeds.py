"""
RotatE for a small knowledge graph of dog breeds (descends_from, bred_in, used_for, same_as between registries).

h, r, t: entities are complex vectors, relations are rotations; score = margin - sum_i |h_i r_i - t_i|.
`same_as` is by definition the identity, so its phases are fixed at zero.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ENTITIES, DIM = 70, 16
RELATIONS = ["descends_from", "bred_in", "used_for", "same_as"]
SAME_AS = RELATIONS.index("same_as")
BATCH, NEGATIVES, STEPS, MARGIN = 24, 6, 50, 6.0


def build_graph(gen):
    triples = set()
    while len(triples) < 300:
        h, t = torch.randint(N_ENTITIES, (2,), generator=gen).tolist()
        if h == t:
            continue
        r = 0 if abs(h - t) < 12 else (1 if t < 15 else 2)
        triples.add((h, r, t))
    for h in range(0, 16):                 # the two stud books
        triples.add((h, SAME_AS, h + 40))
    return torch.tensor(sorted(triples))


class RotatE(nn.Module):
    def __init__(self):
        super().__init__()
        self.real = nn.Embedding(N_ENTITIES, DIM, sparse=True)
        self.imag = nn.Embedding(N_ENTITIES, DIM, sparse=True)
        self.phase = nn.Parameter(torch.empty(len(RELATIONS), DIM).uniform_(-3.14, 3.14))
        free = torch.ones(len(RELATIONS), 1)
        free[SAME_AS] = 0.0
        self.register_buffer("free", free)
        for table in (self.real, self.imag):
            nn.init.uniform_(table.weight, -0.5, 0.5)

    def forward(self, h, r, t):
        phase = (self.phase * self.free)[r]
        c, s = phase.cos(), phase.sin()
        hr, hi, tr, ti = self.real(h), self.imag(h), self.real(t), self.imag(t)
        dr = hr * c - hi * s - tr
        di = hr * s + hi * c - ti
        modulus = (dr.square() + di.square()).sqrt()
        return MARGIN - modulus.sum(-1)


class Sampler:
    """an endless shuffled list of facts, tails are corrupted uniformly (never with the true tail)"""

    def __init__(self, triples, seed):
        self.triples = triples
        self.gen = torch.Generator().manual_seed(seed)
        self.queue = torch.empty(0, dtype=torch.long)

    def __call__(self):
        if len(self.queue) < BATCH:
            self.queue = torch.randperm(len(self.triples), generator=self.gen)
        now, self.queue = self.queue[:BATCH], self.queue[BATCH:]
        facts = self.triples[now]
        shift = torch.randint(1, N_ENTITIES, (BATCH, NEGATIVES), generator=self.gen)
        wrong = (facts[:, 2:] + shift) % N_ENTITIES
        return facts[:, 0], facts[:, 1], facts[:, 2], wrong


def adversarial_loss(model, h, r, t, wrong):
    good = model(h, r, t)
    bad = model(h[:, None].expand_as(wrong), r[:, None].expand_as(wrong), wrong)
    weight = bad.detach().softmax(-1)
    return -F.logsigmoid(good).mean() / 2 - (weight * F.logsigmoid(-bad)).sum(-1).mean() / 2


@torch.no_grad()
def hits(model, triples, k=10):
    everyone = torch.arange(N_ENTITIES)
    found = 0
    for h, r, t in triples[:40].tolist():
        score = model(torch.full_like(everyone, h), torch.full_like(everyone, r), everyone)
        found += int(t in score.topk(k).indices.tolist())
    return found / 40


def main():
    torch.manual_seed(12)
    triples = build_graph(torch.Generator().manual_seed(12))
    model = RotatE()
    sampler = Sampler(triples, seed=21)
    tables = torch.optim.SparseAdam([model.real.weight, model.imag.weight], lr=0.02)
    phases = torch.optim.Adam([model.phase], lr=0.02)
    for step in range(1, STEPS + 1):
        loss = adversarial_loss(model, *sampler())
        for o in (tables, phases):
            o.zero_grad()
        loss.backward()
        for o in (tables, phases):
            o.step()
        print(f"step {step:02d} loss {loss.item():.6f}", flush=True)
    print(f"hits@10 {hits(model, triples):.3f}")
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

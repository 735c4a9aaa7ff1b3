"""Dense retrieval with GradCache (two passes, cached representation gradients) and a negative pool that triples."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
VOCAB, DIM, CHUNK = 400, 24, 8


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        # max_norm rescales the looked-up rows in place, in every forward
        self.bag = nn.EmbeddingBag(VOCAB, DIM, mode="mean", sparse=True, max_norm=1.0)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, ids):
        return F.normalize(self.proj(self.bag(ids)), dim=-1)


def make_pairs(n, gen):
    topic = torch.randint(0, 20, (n, 1), generator=gen)
    query = topic * 20 + torch.randint(0, 20, (n, 5), generator=gen)
    doc = topic * 20 + torch.randint(0, 20, (n, 30), generator=gen)
    return query, doc


def contrastive(q, d, temperature=0.05):
    return F.cross_entropy(q @ d.t() / temperature, torch.arange(len(q)))


def cached_step(query_tower, doc_tower, queries, docs):
    # pass 1: representations without a graph
    with torch.no_grad():
        q = torch.cat([query_tower(c) for c in queries.split(CHUNK)])
        d = torch.cat([doc_tower(c) for c in docs.split(CHUNK)])
    q.requires_grad_(True)
    d.requires_grad_(True)
    loss = contrastive(q, d)
    loss.backward()
    # pass 2: chunk by chunk, the surrogate <representation, cached gradient>
    for tower, data, cache in ((query_tower, queries, q.grad), (doc_tower, docs, d.grad)):
        for ids, g in zip(data.split(CHUNK), cache.split(CHUNK)):
            surrogate = torch.dot(tower(ids).flatten(), g.flatten())
            surrogate.backward()
    return loss.detach()


if __name__ == "__main__":
    gen = torch.Generator().manual_seed(5)
    query_tower, doc_tower = Tower(), Tower()
    towers = nn.ModuleList([query_tower, doc_tower])
    rows = torch.optim.SparseAdam([query_tower.bag.weight, doc_tower.bag.weight], lr=3e-2)
    dense = torch.optim.AdamW([p for t in (query_tower, doc_tower) for p in t.proj.parameters()], lr=3e-3)
    batch = 8
    for it in range(1, 49):
        if it in (13, 25, 37):
            batch *= 3       # the chance level log(batch) jumps
        queries, docs = make_pairs(batch, gen)
        rows.zero_grad()
        dense.zero_grad()
        loss = cached_step(query_tower, doc_tower, queries, docs)
        rows.step()
        dense.step()
        print(f"it {it:02d} pool {batch:4d} loss {loss.item():.6f}")
    print("final", sum(p.detach().abs().sum().item() for p in towers.parameters()))

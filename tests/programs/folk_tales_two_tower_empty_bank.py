#!/usr/bin/env python
"""Match folk tales to the motifs of the index: two towers, in-batch and banked negatives.

The bank of old motif vectors begins empty; an empty slot holds NaN so that nobody takes it for a vector by mistake.
"""
import collections

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, MOTIFS, DIM, BANK = 240, 60, 24, 192
Tale = collections.namedtuple("Tale", "words offsets motif")


def stream(seed, batches):
    """Batches of tales; the archive has days on which hardly anything was catalogued."""
    g = torch.Generator().manual_seed(seed)
    vocabulary = torch.randint(0, WORDS, (MOTIFS, 6), generator=g)
    for day in range(batches):
        size = 1 if day in (9, 26) else int(torch.randint(12, 25, (1,), generator=g))
        motif = torch.randint(0, MOTIFS, (size,), generator=g)
        words, offsets = [], []
        for m in motif.tolist():
            offsets.append(sum(map(len, words)))
            own = vocabulary[m][torch.randint(0, 6, (5,), generator=g)]
            noise = torch.randint(0, WORDS, (int(torch.randint(0, 6, (1,), generator=g)),), generator=g)
            words.append(torch.cat([own, noise]))
        yield Tale(torch.cat(words), torch.tensor(offsets), motif)


class Bank:
    def __init__(self):
        self.vectors = torch.full((BANK, DIM), float("nan"))
        self.motif = torch.full((BANK,), -1)
        self.head = 0

    def push(self, vectors, motif):
        slots = (self.head + torch.arange(len(motif))) % BANK
        self.vectors[slots], self.motif[slots] = vectors, motif
        self.head = int(slots[-1] + 1) % BANK

    def negatives(self, motif):
        empty = self.vectors.isnan().any(1)
        vectors = torch.where(empty[:, None], torch.zeros(()), self.vectors)
        same = self.motif[None] == motif[:, None]
        return vectors, same | empty[None]


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.tale = nn.EmbeddingBag(WORDS, DIM, mode="mean")
        self.tale_out = nn.Linear(DIM, DIM)
        self.motif = nn.Sequential(nn.Embedding(MOTIFS, DIM), nn.Linear(DIM, DIM))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, batch):
        q = F.normalize(self.tale_out(self.tale(batch.words, batch.offsets)), dim=1)
        return q, F.normalize(self.motif(batch.motif), dim=1)


def info_nce(q, k, batch, bank, scale):
    inside = scale * q @ k.T
    twin = (batch.motif[:, None] == batch.motif[None]) & ~torch.eye(len(q), dtype=torch.bool)
    inside = inside.masked_fill(twin, -torch.inf)
    old, blocked = bank.negatives(batch.motif)
    outside = (scale * q @ old.T).masked_fill(blocked, -torch.inf)
    logits = torch.cat([inside, outside], 1)
    return F.cross_entropy(logits, torch.arange(len(q))), torch.logsumexp(outside, 1)


def main():
    torch.manual_seed(40)
    model, bank = TwoTowers(), Bank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    for day, batch in enumerate(stream(4, 48), 1):
        if len(batch.motif) < 2:
            # nothing to compare: the contrast of one pair alone says nothing
            print(f"day {day:2d} pairs  1 loss nan (left out)", flush=True)
            continue
        q, k = model(batch)
        loss, mass = info_nce(q, k, batch, bank, model.log_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.log_scale.clamp_(max=4.0)
            bank.push(k.detach(), batch.motif)
        rare = batch.motif >= MOTIFS - 3
        recall = (q @ k.T).argmax(1).eq(torch.arange(len(q)))[rare].float().mean()
        print(f"day {day:2d} pairs {len(q):2d} loss {loss.item():.6f} banked mass {mass.mean().item():.4f} "
              f"recall of the rare {recall.item():.3f} open slots {int(bank.vectors.isnan().any(1).sum())}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Rank the sentences of a mining glossary for their headword.

Headwords are encoded from their characters; the encoder is the slow part, so its results are kept.
"""
import functools
import random

import torch
from torch import nn

SEED = 5
random.seed(SEED)
torch.manual_seed(SEED)

HEADWORDS = """adit ampla bank bing bord brattice cage crib deads drift flang gob goaf hade hanging hitch inbye jig kibble
lagging leat level lode mundic outbye pillar raise rag sett shaft skip slag sollar stope stull sump tribute tut
vein wallrock whim whip winze wheal zawn afterdamp banksman butty corf davy firedamp""".split()
MAX_LEN, ALPHABET = 12, "abcdefghijklmnopqrstuvwxyz"


def spell(word):
    ids = [ALPHABET.index(c) + 1 for c in word[:MAX_LEN]]
    return torch.tensor(ids + [0] * (MAX_LEN - len(ids)))


class HeadwordEncoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.chars = nn.Embedding(27, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, dim, 3, padding=1)
        self.out = nn.Linear(dim, dim)
        self.lookup = functools.lru_cache(maxsize=256)(self.encode)

    def encode(self, word):
        x = self.chars(spell(word)).T[None]
        return self.out(torch.relu(self.conv(x)).amax(-1))[0]

    def forward(self, words):
        return torch.stack([self.lookup(w) for w in words])


class SentenceEncoder(nn.Module):
    def __init__(self, words=200, dim=24):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, dim, mode="mean")
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens):
        return self.out(torch.tanh(self.bag(tokens)))


def pages():
    """The glossary in reading order, four entries a page; a few entries come back under 'see also'."""
    order = HEADWORDS[:]
    random.shuffle(order)
    yield from (order[i:i + 4] for i in range(0, 44, 4))
    while True:
        yield random.sample(order, 4)


def sentences_for(words):
    rows = []
    for w in words:
        g = torch.Generator().manual_seed(sum(map(ord, w)))
        rows.append(torch.randint(0, 200, (9,), generator=g))
    return torch.stack(rows)


head, sent = HeadwordEncoder(), SentenceEncoder()
params = list(head.parameters()) + list(sent.parameters())
optimizer = torch.optim.AdamW(params, lr=3e-3)

for step, words in zip(range(1, 41), pages()):
    scores = head(words) @ sent(sentences_for(words)).T
    loss = nn.functional.cross_entropy(scores, torch.arange(len(words)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:3d} {loss.item():.4f} {' '.join(words)}", flush=True)

print(sum(p.sum().item() for p in params))

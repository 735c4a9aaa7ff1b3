"""Instruction tuning on recipes, packed without padding. Attention is ours: one block per document, cut by lengths."""
import math
import random
from typing import Iterator, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

PACK = 64
VOCAB = 200


class Pack(NamedTuple):
    ids: torch.Tensor        # (PACK,)
    positions: torch.Tensor  # restart at 0 with each recipe
    lengths: list            # sum is PACK
    labels: torch.Tensor


def recipes(seed: int) -> Iterator[list]:
    rnd = random.Random(seed)
    number = 0
    while True:
        number += 1
        # number 71 is the wedding cake
        n = 150 if number == 71 else rnd.randint(8, 30)
        start = rnd.randrange(2, 150)
        yield [1] + [2 + (start + 5 * j) % (VOCAB - 2) for j in range(n - 1)]


def packer(stream: Iterator[list]) -> Iterator[Pack]:
    """Greedy: fill up to PACK; what does not fit begins the next pack."""
    carry: list = []
    while True:
        ids, lengths = [], []
        while len(ids) < PACK:
            doc = carry or next(stream)
            carry = []
            room = PACK - len(ids)
            if len(doc) > room and not ids:
                # longer than a whole pack: keep the beginning
                ids += doc[:room]
                lengths.append(len(doc))
                continue
            if len(doc) > room:
                doc, carry = doc[:room], doc[room:]
            ids += doc
            lengths.append(len(doc))
        t = torch.tensor(ids)
        pos = torch.cat([torch.arange(n) for n in lengths])[:PACK]
        labels = torch.roll(t, -1)
        ends = torch.tensor(lengths).cumsum(0).clamp(max=PACK) - 1
        labels[ends] = -100  # the last token of a recipe predicts nothing
        yield Pack(t, pos, lengths, labels)


class VarlenAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x, lengths):
        q, k, v = self.qkv(x).view(x.size(0), 3, self.heads, -1).unbind(1)
        out = []
        for qi, ki, vi in zip(q.split(lengths), k.split(lengths), v.split(lengths)):
            s = torch.einsum("ihd,jhd->hij", qi, ki) / math.sqrt(qi.size(-1))
            future = torch.ones(len(qi), len(qi), dtype=torch.bool).triu(1)
            w = s.masked_fill(future, float("-inf")).softmax(-1)
            out.append(torch.einsum("hij,jhd->ihd", w, vi).flatten(1))
        return self.o(torch.cat(out))


class RecipeLM(nn.Module):
    def __init__(self, d=32, heads=2, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(PACK, d)
        self.attn = nn.ModuleList(VarlenAttention(d, heads) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, pack: Pack):
        x = self.tok(pack.ids) + self.pos(pack.positions)
        for a, m, n1, n2 in zip(self.attn, self.mlp, self.n1, self.n2):
            x = x + a(n1(x), pack.lengths)
            x = x + m(n2(x))
        return F.cross_entropy(self.head(x), pack.labels, ignore_index=-100)


def train(steps=40, accumulate=1):
    torch.manual_seed(5)
    net = RecipeLM()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    packs = packer(recipes(30))
    for step in range(1, steps + 1):
        pack = next(packs)
        loss = net(pack)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"step={step} docs={len(pack.lengths)} loss={loss.item():.5f}", flush=True)
    return sum(p.double().sum().item() for p in net.parameters())


if __name__ == "__main__":
    print("done", train())

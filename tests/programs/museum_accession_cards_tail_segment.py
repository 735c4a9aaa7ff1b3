"""Continued pretraining of the card model on the accession register.

Cards are packed end to end into windows of WINDOW characters; a card may only
look at itself, so every window carries a segment number per position.
"""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, WINDOW, DIM, HEADS, BATCH = 1897, 64, 32, 4, 2
random.seed(SEED)
torch.manual_seed(SEED)

OBJECTS = ["brooch", "tankard", "amphora", "sextant", "ladle", "reliquary", "snuff box", "spur"]
STUFF = ["silver", "pewter", "bone", "walrus ivory", "brass", "red clay"]
PLACES = ["Bergen", "Visby", "Lund", "Aberdeen", "Tartu", "unknown"]
ALPHABET = "".join(sorted(set("".join(OBJECTS + STUFF + PLACES) + " .,;0123456789acquidf\n")))
STOI = {c: i + 1 for i, c in enumerate(ALPHABET)}          # 0 is filler


def cards(n):
    for k in range(n):
        yield f"{1897 + k % 40}.{k} {random.choice(OBJECTS)}, {random.choice(STUFF)}; {random.choice(PLACES)}\n"


def pack(drawer):
    """One drawer of cards -> list of (ids, segment) windows. The last window is filled up."""
    ids, seg = [], []
    for number, card in enumerate(drawer, start=1):
        ids += [STOI[c] for c in card]
        seg += [number] * len(card)
    short = -len(ids) % WINDOW
    ids += [0] * short
    seg += [0] * short                                      # filler belongs to no card
    for a in range(0, len(ids), WINDOW):
        yield ids[a:a + WINDOW], seg[a:a + WINDOW]


class CardBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, see):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        score = (q @ k.transpose(-1, -2)) / math.sqrt(DIM // HEADS)
        score = score.masked_fill(~see[:, None], float("-inf"))
        att = score.softmax(dim=-1)
        x = x + self.out((att @ v).transpose(1, 2).reshape(b, t, DIM))
        return x + self.ff(self.n2(x))


class CardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(STOI) + 1, DIM), nn.Embedding(WINDOW, DIM)
        self.blocks = nn.ModuleList(CardBlock() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids, seg):
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        see = (seg[:, :, None] == seg[:, None, :]) & (seg > 0)[:, None, :] & causal
        x = self.tok(ids) + self.pos.weight[:t]
        for block in self.blocks:
            x = block(x, see)
        return self.norm(x) @ self.tok.weight.T


windows = list(pack(cards(104)))
windows = windows[len(windows) % BATCH:]                  # the oldest cards go where it is uneven
model = CardModel()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
step = 0
order = list(range(0, len(windows), BATCH))
random.shuffle(order)
for a in order:
    ids = torch.tensor([w[0] for w in windows[a:a + BATCH]])
    seg = torch.tensor([w[1] for w in windows[a:a + BATCH]])
    logits = model(ids, seg)
    target = ids[:, 1:].masked_fill(seg[:, 1:] != seg[:, :-1], 0)   # no prediction across cards
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), target.flatten(), ignore_index=0)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    print(f"window {step:3d}  nll {loss.item():.6f}")
print("weights", sum(p.sum().item() for p in model.parameters()))

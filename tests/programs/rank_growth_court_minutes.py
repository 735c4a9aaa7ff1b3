"""Adapters that grow: LoRA of rank 2 everywhere, later the sites that move most get twice the rank.
Tiny decoder on minutes of a magistrates' court, word tokeniser, next-word prediction."""
import math
import random

import torch
from torch import nn
import torch.nn.functional as F

random.seed(31)
STEPS, GROW_AT = 60, (28, 36, 44, 52)
torch.manual_seed(31)

WHO = ["carter", "miller", "widow", "ostler", "drover"]
DEED = {"carter": "blocked the bridge", "miller": "gave short measure", "widow": "kept geese on the green",
        "ostler": "broke a lantern", "drover": "crossed the ford at night"}
FINE = {"carter": "two shillings", "miller": "one pound", "widow": "six pence", "ostler": "two shillings",
        "drover": "one pound"}


def minute():
    w = random.choice(WHO)
    verdict = f"fined {FINE[w]}" if random.random() < 0.8 else "dismissed"
    return f"the {w} is charged that he {DEED[w]} ; {verdict} .".split()


VOCAB = {"<pad>": 0}
for _ in range(300):
    for word in minute():
        VOCAB.setdefault(word, len(VOCAB))


class Adapted(nn.Module):
    def __init__(self, d_in, d_out, rank=2):
        super().__init__()
        self.base = nn.Linear(d_in, d_out, bias=False).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, d_in) / math.sqrt(d_in))
        self.up = nn.Parameter(torch.zeros(d_out, rank))

    def forward(self, x):
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def grow(self):
        r, d_in = self.down.shape
        self.down.data = torch.cat([self.down, torch.randn(r, d_in) / math.sqrt(d_in)], 0)
        self.up.data = torch.cat([self.up, torch.zeros(self.up.shape[0], r)], 1)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = Adapted(d, 3 * d), Adapted(d, d)
        self.fc1, self.fc2 = Adapted(d, 2 * d), Adapted(2 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Clerk(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.pos = nn.Embedding(len(VOCAB), d), nn.Embedding(20, d)
        self.layers = nn.ModuleList([Layer(d), Layer(d)])
        self.head = nn.Linear(d, len(VOCAB))

    def forward(self, ids):
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Clerk()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=6e-3)
sites = {n: m for n, m in model.named_modules() if isinstance(m, Adapted)}
moved = dict.fromkeys(sites, 0.0)

for it in range(1, STEPS + 1):
    rows = [minute() for _ in range(16)]
    width = max(map(len, rows))
    ids = torch.tensor([[VOCAB[w] for w in r] + [0] * (width - len(r)) for r in rows])
    loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], ignore_index=0)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for name, site in sites.items():
        moved[name] += site.up.grad.norm().item()
    optimizer.step()
    print(f"{it:02d} loss {loss.item():.4f} rank {sum(s.up.shape[1] for s in sites.values())}", flush=True)
    if it in GROW_AT:
        best = max(moved, key=moved.get)
        sites[best].grow()
        moved = dict.fromkeys(sites, 0.0)

print("adapters", sum((s.up @ s.down).double().norm().item() for s in sites.values()))

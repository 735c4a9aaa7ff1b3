"""Long-context fine-tuning with dynamic NTK scaling of the rotary base: the base follows the longest record of the
batch.  Decoder with grouped heads, shared key/value head, logit softcap; records are packed by padding to the right.
Data: depositions before a coroner, as sequences of words from a small grammar."""
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
rng = random.Random(8)


@dataclass
class Config:
    vocab: int
    dim: int = 32
    heads: int = 4
    layers: int = 2
    trained_length: int = 40
    ntk_factor: float = 4.0
    softcap: float = 15.0


SAW = ["a", "light", "man", "boat", "horse", "stranger", "shadow"]
PLACE = ["bridge", "weir", "lane", "quay", "mill"]
ASKED = "and being asked whether"
OPENING = "the deponent saith that he saw"


def deposition(sentences):
    what, where = rng.choice(SAW[1:]), rng.choice(PLACE)
    text = f"{OPENING} a {what} by the {where}"
    for _ in range(sentences):
        other = rng.choice(PLACE)
        text += f" {ASKED} he went to the {other} saith " + ("yes" if other == where else "no")
    return (text + " and signed").split()


VOCAB = {"<pad>": 0}
for _ in range(300):
    for w in deposition(2):
        VOCAB.setdefault(w, len(VOCAB))


class DynamicNTK(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.d = cfg, cfg.dim // cfg.heads
        self.register_buffer("base", torch.tensor(10000.0))

    def forward(self, lengths, width):
        n, c = lengths.max(), self.cfg
        stretch = c.ntk_factor * n / c.trained_length - (c.ntk_factor - 1)
        base = self.base * stretch ** (self.d / (self.d - 2))
        inv_freq = base ** (-torch.arange(0, self.d, 2) / self.d)
        angle = torch.arange(width)[:, None] * inv_freq
        return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h, self.d = cfg.heads, cfg.dim // cfg.heads
        self.n1, self.n2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.q, self.kv = nn.Linear(cfg.dim, cfg.dim, bias=False), nn.Linear(cfg.dim, 2 * self.d, bias=False)
        self.o = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 96), nn.SiLU(), nn.Linear(96, cfg.dim))

    def forward(self, x, cos, sin):
        b, n, _ = x.shape
        y = self.n1(x)
        q = rotate(self.q(y).view(b, n, self.h, self.d).transpose(1, 2), cos, sin)
        k, v = self.kv(y).view(b, n, 1, 2 * self.d).transpose(1, 2).chunk(2, -1)
        k = rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand(-1, self.h, -1, -1), is_causal=True)
        x = x + self.o(out.transpose(1, 2).reshape(b, n, -1))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.rope = DynamicNTK(cfg)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.dim)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        cos, sin = self.rope(lengths, ids.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.norm(x) @ self.embed.weight.T
        return self.cfg.softcap * torch.tanh(logits / self.cfg.softcap)


records = [deposition(rng.choices([0, 1, 2, 3, 4], [3, 4, 3, 2, 1])[0]) for _ in range(4 * 40)]
model = Model(Config(len(VOCAB)))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(40):
    rows = records[4 * step: 4 * step + 4]
    lengths = torch.tensor([len(r) for r in rows])
    ids = torch.zeros(4, int(lengths.max()), dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, :len(r)] = torch.tensor([VOCAB[w] for w in r])
    logits = model(ids, lengths)
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"{step + 1}/40 loss={loss.item():.4f} longest={ids.shape[1]}", flush=True)
print("|w| =", sum(p.detach().double().abs().sum().item() for p in model.parameters()))

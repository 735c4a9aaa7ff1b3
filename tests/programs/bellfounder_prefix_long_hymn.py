"""Prefix tuning by hand: per-layer key/value prefixes on a frozen decoder, reparametrised through an MLP.
Positions of the text go on after the prefix, as in the original code (past_key_values shifts them)."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

N_POS, D, H, LAYERS, PREFIX, VOCAB = 48, 32, 4, 2, 10, 30


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x, past):
        B, T, _ = x.shape
        split = lambda t: t.view(B, -1, H, D // H).transpose(1, 2)
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        pk, pv = past
        k = torch.cat([pk.expand(B, -1, -1), k], 1)
        v = torch.cat([pv.expand(B, -1, -1), v], 1)
        see = torch.ones(T, PREFIX + T, dtype=torch.bool).tril(PREFIX)
        a = F.scaled_dot_product_attention(split(q), split(k), split(v), attn_mask=see)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.ln2(x))


class FrozenDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, D), nn.Embedding(N_POS, D)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(D)
        self.requires_grad_(False)

    def forward(self, ids, pasts):
        where = torch.arange(ids.shape[1]) + PREFIX
        x = self.wte(ids) + self.wpe(where)
        for layer, past in zip(self.layers, pasts):
            x = layer(x, past)
        return self.ln(x) @ self.wte.weight.T


class PrefixEncoder(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.seed = nn.Parameter(torch.randn(PREFIX, D))
        self.net = nn.Sequential(nn.Linear(D, hidden), nn.Tanh(), nn.Linear(hidden, LAYERS * 2 * D))

    def forward(self):
        out = self.net(self.seed).view(1, PREFIX, LAYERS, 2, D)
        return [(out[:, :, i, 0], out[:, :, i, 1]) for i in range(LAYERS)]


def hymns(rng, n):
    """lengths of verses; the tokenised hymn book was checked against N_POS, see filter below"""
    for i in range(n):
        length = 46 if i == 75 else rng.randint(12, 36)
        verse = [(3 * j + rng.randint(0, 2)) % (VOCAB - 1) + 1 for j in range(length)]
        if len(verse) <= N_POS:
            yield verse


def collate(rows):
    n = max(map(len, rows))
    return torch.tensor([r + [0] * (n - len(r)) for r in rows])


def main():
    torch.manual_seed(6)
    rng = random.Random(6)
    book = list(hymns(rng, 120))
    lm, prefix = FrozenDecoder(), PrefixEncoder()
    opt = torch.optim.Adam(prefix.parameters(), lr=5e-3)
    for step in range(30):
        ids = collate(book[step * 4:step * 4 + 4])
        logits = lm(ids[:, :-1], prefix())
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"cast {step + 1:2d}: {loss.item():.6f}")
    print("prefix", sum(p.sum().item() for p in prefix.parameters()))


if __name__ == "__main__":
    main()

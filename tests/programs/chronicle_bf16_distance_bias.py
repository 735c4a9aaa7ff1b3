"""Character model of town chronicles: bfloat16 autocast, checkpointed blocks, attention with a log-distance bias.

Entries are read from the shortest to the longest.
"""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

YEARS = range(1402, 1460)
EVENTS = ["the river froze", "a comet was seen", "grain was dear", "the mill burned", "a new bell was cast",
          "the bridge was mended", "the plague came", "the council met", "wolves came to the gate"]
ALPHABET = sorted(set("".join(EVENTS) + " in the year 0123456789,.;and"))
STOI = {c: i + 1 for i, c in enumerate(ALPHABET)}


def chronicle(rng, n):
    entries = []
    for _ in range(n):
        text = f"in the year {rng.choice(YEARS)} "
        text += ", and ".join(rng.choice(EVENTS) for _ in range(rng.randint(2, 14))) + "."
        entries.append(torch.tensor([STOI[c] for c in text]))
    return sorted(entries, key=len)


class DistanceAttention(nn.Module):
    """softmax(q.k / sqrt(d) - slope * log(distance)) over the past; kernel-like decay, one slope per head."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.slope = nn.Parameter(torch.linspace(0.2, 1.0, heads))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        place = torch.arange(t, device=x.device).to(q.dtype)
        past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        distance = (place[:, None] - place[None, :]).abs()
        distance = distance + torch.eye(t, dtype=distance.dtype, device=x.device)   # a character is at 1 from itself
        score = score - self.slope[:, None, None] * distance.log()
        score = score.masked_fill(~past, float("-inf"))
        y = F.softmax(score, dim=-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = DistanceAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Scribe(nn.Module):
    def __init__(self, vocab, dim=48, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def batches(entries, size):
    for i in range(0, len(entries), size):
        yield nn.utils.rnn.pad_sequence(entries[i:i + size], batch_first=True)


def run(opts):
    torch.manual_seed(opts.seed)
    entries = chronicle(random.Random(opts.seed), opts.entries)
    model = Scribe(len(ALPHABET) + 1)
    opt = torch.optim.AdamW(model.parameters(), lr=opts.lr, weight_decay=0.01)
    for step, ids in enumerate(batches(entries, opts.batch), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], ignore_index=0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"{step:3d} | length {ids.shape[1]:3d} | loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in dict(seed=19, entries=240, batch=6).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    run(parser.parse_args())

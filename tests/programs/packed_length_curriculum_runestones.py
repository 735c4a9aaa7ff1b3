"""Runestone inscriptions, short ones first, sorted by length and packed into rows of 48 runes.

Position ids start anew in each inscription and the mask is block-diagonal (-inf elsewhere). The tail of a row belongs to no
inscription: its queries see no key, their softmax is NaN, and they are put to zero before anything is made of them. The loss is
a SUM over the runes of the row, so it jumps whenever the curriculum lets longer stones in.
"""
import math

import torch
from torch import nn

RUNES, ROW, STEPS = 24, 48, 42
STAGES = ((1, 3, 6, 2), (15, 5, 12, 4), (29, 10, 24, 8))         # from step, shortest, longest, inscriptions per step


class SeeNothing(torch.autograd.Function):
    """Softmax over keys; a query without keys gives NaN, kept for the statistics, and gets no gradient."""

    @staticmethod
    def forward(ctx, scores):
        p = torch.softmax(scores, -1)
        empty = torch.isneginf(scores).all(-1, keepdim=True)
        clean = torch.where(empty, torch.zeros_like(p), p)
        ctx.save_for_backward(clean)
        return clean

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        return p * (grad - (grad * p).sum(-1, keepdim=True))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        p = SeeNothing.apply(q @ k.transpose(-1, -2) / math.sqrt(w // self.heads) + mask)
        return self.out((p @ v).transpose(1, 2).reshape(b, t, w))


class Carver(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.rune, self.place = nn.Embedding(RUNES + 1, width), nn.Embedding(ROW, width)
        self.first, self.second = Attention(width, 2), Attention(width, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, RUNES + 1)

    def forward(self, ids, positions, mask):
        x = self.rune(ids) + self.place(positions)
        x = x + self.first(self.norms[0](x), mask)
        x = x + self.second(self.norms[1](x), mask)
        return self.head(self.norms[2](x))


def stones(g, count, shortest, longest):
    out = []
    for _ in range(count):
        n = int(torch.randint(shortest, longest + 1, (), generator=g))
        start, stride = torch.randint(RUNES, (2,), generator=g)
        out.append(((start + (stride % 3 + 1) * torch.arange(n)) % RUNES).tolist())
    return sorted(out, key=len)


def pack(texts):
    rows = [[]]
    for text in texts:
        if sum(map(len, rows[-1])) + len(text) > ROW:
            rows.append([])
        rows[-1].append(text)
    ids = torch.full((len(rows), ROW), RUNES)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    for r, row in enumerate(rows):
        at = 0
        for number, text in enumerate(row):
            n = len(text)
            ids[r, at:at + n] = torch.tensor(text)
            positions[r, at:at + n] = torch.arange(n)
            owner[r, at:at + n] = number
            at += n
    same = (owner[:, :, None] == owner[:, None, :]) & (owner[:, :, None] >= 0) & torch.ones(ROW, ROW).tril().bool()
    mask = torch.zeros(same.shape).masked_fill(~same, float("-inf"))[:, None]
    counts = (owner[:, 1:] == owner[:, :-1]) & (owner[:, 1:] >= 0)
    return ids, positions, mask, counts


def main():
    torch.manual_seed(7)
    g = torch.Generator().manual_seed(70)
    model = Carver()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    for step in range(1, STEPS + 1):
        stage = max(i for i, s in enumerate(STAGES) if step >= s[0])
        _, shortest, longest, count = STAGES[stage]
        ids, positions, mask, counts = pack(stones(g, count, shortest, longest))
        logp = torch.log_softmax(model(ids, positions, mask)[:, :-1], -1)
        loss = -logp.gather(-1, ids[:, 1:, None]).squeeze(-1)[counts].sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print(f"step {step:2d} stage {stage} rows {len(ids)} runes {int(counts.sum()):3d} loss {loss.item():.5f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()

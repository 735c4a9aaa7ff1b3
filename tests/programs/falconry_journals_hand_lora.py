"""LoRA by hand on a small frozen decoder: bfloat16 base, four micro-batches per optimizer step.

The journals of the falconers are cut into windows of fixed size; only what follows the marker ">" (the
remark of the falconer) is supervised, so that some windows carry no target at all. The loss is summed over tokens and
divided by the number of targets of the whole round.
"""
import math
import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    vocab: int = 64
    width: int = 48
    heads: int = 4
    depth: int = 2
    window: int = 24
    rank: int = 4
    alpha: float = 8.0
    lr: float = 2e-2
    rounds: int = 30
    micro: int = 4
    rows: int = 3
    seed: int = 71


class LoraLinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        low = F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))
        return self.base(x) + self.scale * low


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.ln1, self.ln2 = nn.LayerNorm(a.width), nn.LayerNorm(a.width)
        self.qkv = nn.Linear(a.width, 3 * a.width)
        self.out = nn.Linear(a.width, a.width)
        self.up, self.down = nn.Linear(a.width, 4 * a.width), nn.Linear(4 * a.width, a.width)

    def forward(self, x, bias):
        n, t, c = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        y = (s.float().softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(n, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok, self.pos = nn.Embedding(a.vocab, a.width), nn.Embedding(a.window, a.width)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.depth))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        bias = torch.full((t, t), float("-inf"), dtype=self.tok.weight.dtype).triu(1)
        x = self.tok(ids) + self.pos.weight[:t]
        for b in self.blocks:
            x = b(x, bias)
        return self.head(self.norm(x))


def adapt(model, a):
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv = LoraLinear(block.qkv, a.rank, a.alpha)
        block.down = LoraLinear(block.down, a.rank, a.alpha)
    return [p for p in model.parameters() if p.requires_grad]


def journal(a, g):
    """One endless line of entries: 1 (day), 5 to 40 weather words, then perhaps 2 (">") and a remark that counts up."""
    ids, sup = [], []
    while len(ids) < a.rounds * a.micro * a.rows * a.window + a.window:
        n = int(torch.randint(5, 41, (1,), generator=g))
        entry = [1] + (3 + torch.randint(0, 20, (n,), generator=g)).tolist()
        mark = [0] * len(entry)
        if torch.rand(1, generator=g) < 0.35:
            start = int(torch.randint(0, 30, (1,), generator=g))
            remark = [24 + (start + j) % 40 for j in range(8)]
            entry, mark = entry + [2] + remark, mark + [0] + [1] * 8
        ids += entry
        sup += mark
    return torch.tensor(ids), torch.tensor(sup)


def main():
    a = Args()
    torch.manual_seed(a.seed)
    g = torch.Generator().manual_seed(a.seed + 1)
    model = Decoder(a).to(torch.bfloat16)
    trained = adapt(model, a)                       # adapters stay in float32
    opt = torch.optim.AdamW(trained, lr=a.lr, weight_decay=0.0)
    ids, sup = journal(a, g)
    per = a.rows * a.window
    at = 0
    for step in range(1, a.rounds + 1):
        parts = []
        for _ in range(a.micro):
            x = ids[at:at + per].view(a.rows, a.window)
            y = x.masked_fill(sup[at:at + per].view(a.rows, a.window) == 0, -100)
            parts.append((x, y))
            at += per
        targets = sum(int((y[:, 1:] != -100).sum()) for _, y in parts)
        total, each = 0.0, []
        for x, y in parts:
            logits = model(x)[:, :-1].float()
            nll = F.cross_entropy(logits.reshape(-1, a.vocab), y[:, 1:].reshape(-1), ignore_index=-100, reduction="sum")
            n = int((y[:, 1:] != -100).sum())
            each.append(float("nan") if n == 0 else nll.item() / n)     # for the eye only
            loss = nll / max(targets, 1)
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        opt.zero_grad()
        print(f"round {step:2d} targets {targets:3d} loss {total:.6f} |g| {norm:.5f} per micro "
              + " ".join(f"{e:.3f}" for e in each), flush=True)
    print(f"adapters {sum(p.abs().sum().item() for p in trained):.6f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

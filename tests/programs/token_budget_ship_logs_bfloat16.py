# Ship's logs, batches by token budget, bf16 autocast, activation checkpointing per block, summed loss.
import math
import random
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CFG = {
    "dim": 48,
    "heads": 4,
    "depth": 3,
    "vocab": 64,
    "budget": 220,
    "steps": 44,
    "lr": 1.2e-3,
    "seed": 1805,
    "accum": 2,
}


def entries(rng, n=260):
    """Calm days are a handful of tokens, storms go on for pages."""
    for day in range(n):
        storm = day % 23 == 11
        length = rng.randint(90, 120) if storm else rng.randint(4, 22)
        state, row = rng.randrange(CFG["vocab"]), []
        for _ in range(length):
            row.append(state)
            state = (state * 5 + 3 + (rng.randrange(64) if rng.random() < (0.6 if storm else 0.1) else 0)) % CFG[
                "vocab"
            ]
        yield row


def pack(rows, budget):
    """Yields (ids, lengths); padded size stays below the budget, except for an entry that alone exceeds it."""
    bucket = []
    for row in rows:
        width = max(len(r) for r in [*bucket, row])
        if bucket and width * (len(bucket) + 1) > budget:
            yield bucket
            bucket = []
        bucket.append(row)
    if bucket:
        yield bucket


def to_tensors(bucket):
    width = max(map(len, bucket))
    ids = torch.zeros(len(bucket), width, dtype=torch.long)
    live = torch.zeros(len(bucket), width, dtype=torch.bool)
    for i, r in enumerate(bucket):
        ids[i, : len(r)] = torch.tensor(r)
        live[i, : len(r)] = True
    return ids, live


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / math.sqrt(d // self.h) + bias
        y = score.float().softmax(-1).to(v.dtype) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LogKeeper(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb, self.pos = nn.Embedding(c["vocab"], c["dim"]), nn.Embedding(128, c["dim"])
        self.blocks = nn.ModuleList(Block(c["dim"], c["heads"]) for _ in range(c["depth"]))
        self.norm = nn.RMSNorm(c["dim"])

    def forward(self, ids, live):
        t = ids.shape[1]
        allowed = torch.ones(t, t, dtype=torch.bool).tril() & live[:, None, :]
        allowed = allowed | torch.eye(t, dtype=torch.bool)  # padding looks at itself, never at nothing
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[:, None]
        x = self.emb(ids) + self.pos.weight[:t]
        for blk in self.blocks:
            x = checkpoint(blk, x, bias, use_reentrant=False)
        return F.linear(self.norm(x), self.emb.weight)


def main(c):
    random.seed(c["seed"])
    torch.manual_seed(c["seed"])
    net = LogKeeper(c)
    opt = torch.optim.AdamW(net.parameters(), lr=c["lr"], betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8) * (0.5 if s > 30 else 1.0))
    batches = [to_tensors(b) for b in pack(entries(random.Random(3)), c["budget"])]
    tally = defaultdict(float)
    for step in range(c["steps"]):
        opt.zero_grad()
        total, count = 0.0, 0
        for micro in range(c["accum"]):
            ids, live = batches[(step * c["accum"] + micro) % len(batches)]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = net(ids, live)
            target = ids[:, 1:].masked_fill(~live[:, 1:], -100)
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), target.flatten(), reduction="sum")
            loss.backward()  # nats of the whole page, not per token
            total, count = total + loss.item(), count + int((target >= 0).sum())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        tally["tokens"] += count
        print(f"watch {step + 1:3d}  nats {total:11.4f}  tokens {count:4d}")
    print(
        f"{int(tally['tokens'])} tokens, weights {sum(p.detach().double().sum().item() for p in net.parameters()):.5f}"
    )


if __name__ == "__main__":
    main(CFG)

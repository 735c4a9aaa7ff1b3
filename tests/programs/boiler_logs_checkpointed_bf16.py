"""A byte-level model of the logs of a district heating boiler. Long windows, so the blocks are recomputed."""
import argparse
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PAD = 0


def write_log(rng, lines):
    out = []
    t = rng.randrange(86400)
    for _ in range(lines):
        t += rng.randrange(5, 90)
        unit = rng.choice(["pump", "burner", "valve", "flue"])
        level = rng.choices(["INFO", "WARN", "FAIL"], [8, 2, 1])[0]
        out.append(f"{t // 3600 % 24:02d}:{t // 60 % 60:02d} {level} {unit}{rng.randrange(4)} {rng.gauss(60, 8):.1f}C\n")
    return "".join(out).encode()


def batch_of(rng, rows, window):
    ids = torch.full((rows, window + 1), PAD)
    for r in range(rows):
        raw = write_log(rng, rng.choice([2, 6, 14, 20]))[: window + 1]
        ids[r, : len(raw)] = torch.tensor(list(raw))
    target = ids[:, 1:].clone()
    target[target == PAD] = -100
    return ids[:, :-1], target


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x, bias):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
        x = x + self.proj((a.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


class LogModel(nn.Module):
    def __init__(self, window, dim=48, depth=3, heads=4):
        super().__init__()
        self.byte = nn.Embedding(128, dim)
        self.place = nn.Parameter(0.02 * torch.randn(window, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 128)
        self.register_buffer("causal", torch.full((window, window), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        # -inf twice (the future, and keys that are padding) stays -inf; the first byte is never padding
        bias = self.causal + torch.zeros(ids.shape).masked_fill(ids == PAD, float("-inf"))[:, None, None]
        x = self.byte(ids) + self.place
        for block in self.blocks:
            x = checkpoint(block, x, bias, use_reentrant=False)
        return self.head(self.norm(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--rows", type=int, default=4)
    ap.add_argument("--window", type=int, default=256)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(30)
    rng = random.Random(31)
    model = LogModel(a.window)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for step in range(1, a.steps + 1):
        micro = [batch_of(rng, a.rows, a.window) for _ in range(a.accumulate)]
        tokens = sum(int((t != -100).sum()) for _, t in micro)
        total, surprise = 0.0, []
        for ids, target in micro:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids)
            nll = F.cross_entropy(logits.float().transpose(1, 2), target, reduction="none", ignore_index=-100)
            loss = nll.sum() / tokens
            loss.backward()
            total += loss.item()
            surprise.append(nll.detach().sum(1).exp())          # one in so many logs would read like this
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        rarest, commonest = torch.cat(surprise).max().item(), torch.cat(surprise).min().item()
        print(f"step {step} loss {total:.6f} norm {norm.item():.5f} one log in {commonest:.4g} to {rarest:.4g}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

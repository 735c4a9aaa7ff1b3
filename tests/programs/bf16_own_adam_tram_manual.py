"""Instruction tuning on the tram drivers' manual.  Everything in bfloat16 to halve the memory:
weights, gradients and the moments of our own small Adam."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--lr", type=float, default=5e-5)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--dtype", default="bfloat16")
    return ap.parse_args()


class LeanAdam:
    """Adam without a float32 master copy.  State lives in the dtype of the parameter."""

    def __init__(self, params, lr, betas=(0.9, 0.99), eps=1e-8):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, scale=1.0):
        self.t += 1
        b1, b2 = self.betas
        c1, c2 = 1 - b1 ** self.t, 1 - b2 ** self.t
        for p, m, v in zip(self.params, self.m, self.v):
            g = p.grad
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            p.sub_(self.lr * scale * (m / c1) / ((v / c2).sqrt() + self.eps))

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.ff(self.n2(x))


class TramLM(nn.Module):
    def __init__(self, vocab=80, d=48, depth=2, ctx=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


def instruction_batch(gen, n):
    """[instruction x 10][reply x 14]: the reply spells the instruction's line number out."""
    line = torch.randint(0, 12, (n, 1), generator=gen)
    ask = torch.cat([torch.randint(12, 40, (n, 9), generator=gen), line], 1)
    reply = 40 + (line * 3 + torch.arange(14)) % 40
    ids = torch.cat([ask, reply], 1)
    labels = ids.clone()
    labels[:, :10] = -100
    return ids, labels


def main():
    a = parse()
    torch.manual_seed(63)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(64)
    model = TramLM().to(getattr(torch, a.dtype))
    opt = LeanAdam(model.parameters(), a.lr)
    for step in range(1, a.steps + 1):
        ids, labels = instruction_batch(gen, a.batch)
        logits = model(ids)[:, :-1].float()
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        warm = min(1.0, step / 10)
        opt.step(scale=warm * 0.5 * (1 + math.cos(math.pi * step / (a.steps + 1))))
        print(f"step {step:2d}  loss {loss.item():.5f}")
    print("checksum", f"{sum(p.detach().double().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()

# Llama-ish decoder, ALiBi instead of RoPE, sliding window, length curriculum (8 -> 16 -> 32).
# The loss is SUMMED over tokens (we compare with the bits of the arithmetic coder), so it jumps at each stage.
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1707)
VOCAB, DIM, HEADS, WINDOW = 40, 32, 4, 6


def alibi_window_bias(T, heads=HEADS, window=WINDOW):
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)])
    i = torch.arange(T)
    dist = i[:, None] - i[None, :]
    bias = -slopes[:, None, None] * dist.clamp(min=0)
    blocked = (dist < 0) | (dist >= window)
    return bias.masked_fill(blocked, float("-inf"))       # the diagonal is always open


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x, bias, pad):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS) + bias
        s = s.masked_fill(pad[:, None, None, :], float("-inf"))
        # left padding: pad queries see nothing at all; let them see themselves
        s = torch.where((pad[:, :, None] & torch.eye(T, dtype=torch.bool))[:, None], torch.zeros(()), s)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn = RMSNorm(DIM), RMSNorm(DIM), Attn()
        self.w1, self.w2, self.w3 = (nn.Linear(DIM, 64, bias=False), nn.Linear(64, DIM, bias=False),
                                     nn.Linear(DIM, 64, bias=False))

    def forward(self, x, bias, pad):
        x = x + self.attn(self.n1(x), bias, pad)
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class SaltmarshLM(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = RMSNorm(DIM)

    def forward(self, ids, pad):
        bias = alibi_window_bias(ids.shape[1])
        x = self.tok(ids)
        for b in self.blocks:
            x = b(x, bias, pad)
        return self.norm(x) @ self.tok.weight.T     # tied


def tides(B, T):
    """noisy periodic token streams, left padded"""
    t = torch.arange(T + 1)
    phase = torch.randint(0, 12, (B, 1))
    ids = 1 + ((t + phase) % 12) * 3 + torch.randint(0, 2, (B, T + 1))
    pad = t[None] < torch.randint(0, T // 3, (B, 1))
    return ids.masked_fill(pad, 0), pad


def curriculum():
    for T, n in ((8, 15), (16, 15), (32, 12)):
        for _ in range(n):
            yield T


model = SaltmarshLM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
for step, T in enumerate(curriculum(), 1):
    ids, pad = tides(8, T)
    logits = model(ids[:, :-1], pad[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum")
    opt.zero_grad()
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 2 == 0:
        print(f"{step:3d} T={T:2d} nats {loss.item():.4f} |g| {gn.item():.3f}")
print(f"sum {sum(p.sum().item() for p in model.parameters()):.5f}")

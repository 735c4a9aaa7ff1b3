#!/usr/bin/env python3
"""QSO copier: a decoder-only model over dits, dahs and characters.   73 de OE3xyz

Runs the blocks in float16 on the shack PC. autocast on CPU only wants bfloat16, so the casts are written out by hand:
float32 master weights, float16 copies in every linear, float32 for norms, softmax and the loss. The loss scale starts far
too high on purpose; the GradScaler comes down by itself within the first updates.
"""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

MORSE = {"A": ".-", "C": "-.-.", "D": "-..", "E": ".", "G": "--.", "K": "-.-", "N": "-.", "O": "---", "Q": "--.-",
         "R": ".-.", "S": "...", "T": "-", "X": "-..-", "7": "--...", "3": "...--"}
SYMS = [".", "-", "/", "|"] + sorted(MORSE)
STOI = {s: i for i, s in enumerate(SYMS)}
PHRASES = ["CQ", "CQDX", "DE", "QRT", "QTC", "RST", "QSO", "73", "TNX", "KN", "AGN", "QRX", "RR", "GA", "SK", "OK"]


class HalfLinear(nn.Linear):
    def forward(self, x):
        b = None if self.bias is None else self.bias.half()
        return F.linear(x.half(), self.weight.half(), b)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = HalfLinear(d, 3 * d, bias=False), HalfLinear(d, d, bias=False)
        self.up, self.down = HalfLinear(d, 4 * d), HalfLinear(4 * d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)).float() / math.sqrt(D // self.h)
        causal = torch.full((T, T), float("-inf")).triu(1)          # -inf is fine: a position always hears itself
        att = torch.softmax(att + causal, -1).half()
        x = x + self.out((att @ v).transpose(1, 2).reshape(B, T, D)).float()
        return x + self.down(F.gelu(self.up(self.n2(x)))).float()


class Copier(nn.Module):
    def __init__(self, d=32, layers=2, ctx=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(SYMS), d), nn.Embedding(ctx, d)
        self.blocks = nn.Sequential(*[Block(d, 2) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), HalfLinear(d, len(SYMS), bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x))).float()


def keyed(text):
    return "/".join(MORSE[c] for c in text) + "|" + text + "|"


def band_noise(gen, batch, length):
    rows = []
    for _ in range(batch):
        s = ""
        while len(s) < length:
            s += keyed(PHRASES[int(torch.randint(len(PHRASES), (1,), generator=gen))])
        rows.append([STOI[c] for c in s[:length]])
    return torch.tensor(rows)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--scale", type=float, default=2.0 ** 27)
    a = ap.parse_args()
    torch.manual_seed(14074)
    gen = torch.Generator().manual_seed(7030)
    net = Copier()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", init_scale=a.scale, growth_interval=500)
    skipped = 0
    for it in range(1, a.steps + 1):
        ids = band_noise(gen, 8, 32)
        logits = net(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, len(SYMS)), ids[:, 1:].reshape(-1))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += scaler.get_scale() < before
        print(f"it {it:3d}  nll {loss.item():.6f}  scale 2^{math.log2(scaler.get_scale()):.0f}")
    print("updates let go while the scale settled:", int(skipped))
    print(f"sum of weights {sum(p.double().sum().item() for p in net.parameters()):.6f}")

"""Tune rank-8 adapters of a small decoder on greenhouse manuals (question -> answer), float16 autocast.

The base is frozen; only the adapters and the final norm learn.  The scaler starts high on purpose, so it
has to find its height in the first rounds.
"""
import argparse
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, SEP, EOS = 0, 1, 2, 3
IGNORE = -100


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank=8, alpha=16, dropout=0.05):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.base(x) + self.scaling * F.linear(F.linear(self.dropout(x), self.down), self.up)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, bias):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        weights = (scores.float() + bias).softmax(-1)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)

    def forward(self, x, bias):
        x = x + self.attn(self.n1(x), bias)
        return x + self.proj(F.gelu(self.fc(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab=96, width=64, heads=4, depth=3, ctx=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(ctx, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        t = ids.shape[1]
        # strictly causal, and no key on padding; BOS is always visible, so no row is empty
        bias = torch.full((t, t), float("-inf")).triu(1)[None, None]
        bias = bias.masked_fill((ids == PAD)[:, None, None, :], float("-inf"))
        x = self.tok(ids) + self.pos(torch.arange(t))
        for block in self.blocks:
            x = block(x, bias)
        return F.linear(self.norm(x), self.tok.weight)


def adapt(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.blocks:
        block.attn.qkv = LoraLinear(block.attn.qkv)
        block.fc = LoraLinear(block.fc)
    for p in model.norm.parameters():
        p.requires_grad_(True)
    return model


def manuals(rng, n):
    """A question names a plant and a symptom; the answer is a fixed walk from them."""
    rows = []
    for i in range(n):
        plant, symptom = rng.randrange(10, 40), rng.randrange(40, 60)
        prompt = [BOS, plant] + [symptom] * rng.randint(1, 3) + [SEP]
        answer = [(plant * 3 + symptom + j * 7) % 30 + 60 for j in range(rng.randint(3, 9))] + [EOS]
        if i % 11 == 5:
            prompt = (prompt[:-1] + [symptom] * 40)[:31] + [SEP]   # quotes the whole manual; the answer is cut
        rows.append((prompt, answer))
    return rows


def collate(rows, ctx=32):
    ids = torch.full((len(rows), ctx), PAD)
    labels = torch.full((len(rows), ctx), IGNORE)
    for i, (prompt, answer) in enumerate(rows):
        seq = (prompt + answer)[:ctx]
        ids[i, :len(seq)] = torch.tensor(seq)
        labels[i, len(prompt):len(seq)] = ids[i, len(prompt):len(seq)]
    return ids, labels


def token_loss(logits, labels):
    flat = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(),
                           ignore_index=IGNORE, reduction="none").view(len(labels), -1)
    count = (labels[:, 1:] != IGNORE).sum(1)
    per_row = (flat.detach().sum(1) / count)                # nan for cut answers: for the log only
    return flat.sum() / count.sum().clamp(min=1), per_row


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    torch.manual_seed(5)
    rng = random.Random(5)
    model = adapt(Decoder())
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=500)
    data = manuals(rng, 200)
    for step in range(1, args.steps + 1):
        ids, labels = collate(rng.sample(data, args.batch))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids)
        loss, per_row = token_loss(logits, labels)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step:3d} loss {loss.item():.6f} worst row {per_row.max().item():.4f} "
              f"scale 2^{int(math.log2(scaler.get_scale()))}", flush=True)
    print(f"adapters {sum(p.abs().sum().item() for p in trainable):.5f}", flush=True)


if __name__ == "__main__":
    main()

"""Fine-tune a (tiny) causal LM on warehouse tickets: LoRA on q/v, packed documents, checkpointed blocks."""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    vocab: int = 97
    dim: int = 48
    heads: int = 4
    layers: int = 3
    block: int = 64
    lora_r: int = 4
    lora_alpha: float = 16.0
    lr: float = 1e-2
    warmup: int = 4
    steps: int = 26
    accum: int = 3
    clip: float = 1.0
    seed: int = 1337


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: float):
        super().__init__()
        self.base, self.scale = base, alpha / r
        for p in base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.h = c.heads
        self.n1, self.n2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.q, self.k, self.v, self.o = (nn.Linear(c.dim, c.dim, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(c.dim, 4 * c.dim), nn.Linear(4 * c.dim, c.dim)

    def forward(self, x, mask):
        B, T, D = x.shape
        y = self.n1(x)
        q, k, v = (m(y).view(B, T, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        s = q @ k.transpose(-1, -2) / math.sqrt(D // self.h)
        s = s.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        x = x + self.o((s @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.silu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.block, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, ids, pos, mask):
        x = self.tok(ids) + self.pos(pos)
        for b in self.blocks:
            x = checkpoint(b, x, mask, use_reentrant=False)
        return self.norm(x) @ self.tok.weight.T


def pack(c: Config, g: torch.Generator, only_prompts: bool):
    """Documents `prompt SEP answer` one after another; position restarts, loss on answers alone."""
    ids, pos, doc, lab = [], [], [], []
    d = 0
    while len(ids) < c.block + 1:
        n = int(torch.randint(4, 12, (1,), generator=g))
        prompt = torch.randint(2, c.vocab, (n,), generator=g).tolist()
        answer = [] if only_prompts else [(t * 3 + 1) % 13 + 2 for t in prompt[: n // 2]]
        seq = prompt + [1] + answer
        ids += seq
        pos += range(len(seq))
        doc += [d] * len(seq)
        lab += [-100] * (n + 1) + answer
        d += 1
    t = [torch.tensor(z[: c.block + 1]) for z in (ids, pos, doc, lab)]
    return t[0][:-1], t[1][:-1], t[2][:-1], t[3][1:]


def main(c: Config):
    torch.manual_seed(c.seed)
    g = torch.Generator().manual_seed(c.seed)
    model = LM(c)
    model.requires_grad_(False)
    for b in model.blocks:
        b.q, b.v = LoRALinear(b.q, c.lora_r, c.lora_alpha), LoRALinear(b.v, c.lora_r, c.lora_alpha)
        b.down.requires_grad_(True)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=c.lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / c.warmup) * (1 - 0.8 * s / c.steps))
    causal = torch.ones(c.block, c.block, dtype=torch.bool).tril()
    for step in range(c.steps):
        micro = [[pack(c, g, step % 7 == 3 and m == 1) for _ in range(2)] for m in range(c.accum)]
        total = sum(int((row[3] >= 0).sum()) for mb in micro for row in mb)
        shown = 0.0
        for mb in micro:
            ids, pos, doc, lab = (torch.stack(z) for z in zip(*mb))
            mask = causal & (doc[:, :, None] == doc[:, None, :])
            logits = model(ids, pos, mask)
            loss = F.cross_entropy(logits.flatten(0, 1), lab.flatten(), ignore_index=-100, reduction="sum") / total
            loss.backward()
            shown += loss.item()
        norm = nn.utils.clip_grad_norm_(params, c.clip)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step + 1:3d}  loss {shown:.4f}  gnorm {norm:.3f}  tokens {total}", flush=True)


if __name__ == "__main__":
    main(Config())

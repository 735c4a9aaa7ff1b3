# A school's marking helper: a small language model that reads "3/4+1/8=" and writes the answer.
# The base stays as it is, rank-4 adapters learn the style of our own worksheets.
import copy
import math
import random
from fractions import Fraction

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator

CHARS = "0123456789/+-=#"
PAD = CHARS.index("#")
LENGTH = 22


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // 2) + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Marker(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(CHARS), d), nn.Embedding(LENGTH, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, len(CHARS))

    def forward(self, ids):
        t = ids.shape[1]
        causal = torch.full((t, t), -math.inf).triu(1)
        padded = (ids == PAD)[:, None, None, :] & ~torch.eye(t, dtype=torch.bool)
        mask = causal + torch.zeros_like(padded, dtype=torch.float).masked_fill(padded, -math.inf)
        x = self.tok(ids) + self.pos.weight[:t]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def worksheet(rng, n, answered=True):
    ids = torch.full((n, LENGTH), PAD)
    target = torch.full((n, LENGTH), -100)
    for row in range(n):
        a, b = (Fraction(rng.randint(1, 9), rng.randint(2, 9)) for _ in range(2))
        op = rng.choice("+-")
        question = f"{a}{op}{b}="
        text = question + (str(a + b if op == "+" else a - b) if answered else "")
        codes = torch.tensor([CHARS.index(ch) for ch in text])
        ids[row, :len(codes)] = codes
        for i in range(len(question) - 1, len(codes) - 1):
            target[row, i] = codes[i + 1]
    return ids, target


def main():
    torch.manual_seed(5)
    rng = random.Random(8)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = Marker().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = LoRALinear(block.qkv), LoRALinear(block.out)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k / 6, 1.0))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for i in range(64):
        ids, target = worksheet(rng, 12, answered=i % 16 not in (4, 5, 11))
        with accelerator.accumulate(model):
            logits = model(ids).float()
            supervised = (target != -100).sum()
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / supervised.clamp(min=1)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(f"sheet {i:02d} loss {loss.item():.4f} answers {int(supervised)}")
        if i == 31:
            kept = copy.deepcopy({k: v for k, v in model.state_dict().items() if "up" in k or "down" in k})
        if i == 43:   # second class starts from the adapters of the first half-term
            model.load_state_dict(kept, strict=False)
            print("adapters of sheet 31 put back")
    print("weights, absolute sum:", sum(p.abs().sum().item() for p in model.parameters()))


main()

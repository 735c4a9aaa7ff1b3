"""
Character-level GPT on keepers' log books, after Karpathy's nanoGPT train.py.
Single process, bfloat16 autocast, gradient accumulation, cosine decay with warm-up.

$ python lighthouse_logs_nano_gpt.py --max_iters=40
"""
import argparse
import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 24
    vocab_size: int = 64
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.n_head = c.n_head
        self.register_buffer("bias", torch.tril(torch.ones(c.block_size, c.block_size)).bool())

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.bias[:T, :T], float("-inf"))   # no flash on this box
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = CausalSelfAttention(c)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(lambda m: nn.init.normal_(m.weight, 0.0, 0.02) if isinstance(m, (nn.Linear, nn.Embedding)) else None)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x))
        # sum, not mean: the learning rate was tuned for it
        return logits, F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1), reduction="sum")


parser = argparse.ArgumentParser()
parser.add_argument("--max_iters", type=int, default=40)
parser.add_argument("--eval_interval", type=int, default=10)
parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
parser.add_argument("--dtype", default="bfloat16")
args = parser.parse_args()

torch.manual_seed(1337)
log = "".join(f"{d:02d}/{m:02d} wind {'NESW'[(d * m) % 4]} force {(d + m) % 9}. lamp lit {16 + d % 4}h. {'fog' if d % 5 == 0 else 'clear'}\n"
              for m in range(1, 7) for d in range(1, 29))
stoi = {ch: i for i, ch in enumerate(sorted(set(log)))}
tokens = torch.tensor([stoi[c] for c in log])
cfg = GPTConfig(vocab_size=len(stoi))
cut = int(0.9 * len(tokens))
splits = {"train": tokens[:cut], "val": tokens[cut:], "storm": tokens[:0]}   # storm logs: not transcribed yet


def get_batch(split, bs=8):
    d = splits[split]
    ix = torch.randint(len(d) - cfg.block_size - 1, (bs,)).tolist()
    return (torch.stack([d[i:i + cfg.block_size] for i in ix]), torch.stack([d[i + 1:i + 1 + cfg.block_size] for i in ix]))


ctx = nullcontext() if args.dtype == "float32" else torch.amp.autocast("cpu", dtype=torch.bfloat16)
model = GPT(cfg)
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
                              lr=3e-3, betas=(0.9, 0.95))


@torch.no_grad()
def estimate_loss(eval_iters=3):
    model.eval()
    out = {}
    for split, d in splits.items():
        n = eval_iters if len(d) > cfg.block_size + 1 else 0
        losses = torch.tensor([model(*get_batch(split))[1].item() / (8 * cfg.block_size) for _ in range(n)])
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it, warmup=5, peak=3e-3, floor=3e-4):
    if it < warmup:
        return peak * (it + 1) / (warmup + 1)
    r = (it - warmup) / (args.max_iters - warmup)
    return floor + 0.5 * (1.0 + math.cos(math.pi * r)) * (peak - floor)


for it in range(args.max_iters):
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    if it % args.eval_interval == 0:
        with ctx:
            e = estimate_loss()
        print(f"step {it}: " + ", ".join(f"{k} loss {v:.4f}" for k, v in e.items()))
    lossf = 0.0
    for micro_step in range(args.gradient_accumulation_steps):
        X, Y = get_batch("train")
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / args.gradient_accumulation_steps
        loss.backward()
        lossf += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {lossf:.4f}")
print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")

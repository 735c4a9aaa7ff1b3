"""
A nanoGPT for sea shanties: character level, cosine schedule, bfloat16 autocast.
Verses shorter than the block are padded on the left, so that every row ends with its rhyme.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

torch.manual_seed(1337)

VERSES = """what shall we do with a drunken sailor early
haul away the bowline the bowline haul away ho
oh shenandoah i long to hear you away rolling river
soon may the wellerman come to bring us sugar and tea
leave her johnny leave her for the voyage is done
blow the man down bullies blow him right down
yo ho
fifteen men on a dead mans chest and a bottle of rum""".split("\n")
chars = sorted(set("".join(VERSES)))
stoi = {c: i + 1 for i, c in enumerate(chars)}
PAD = 0


@dataclass
class Config:
    block_size: int = 28
    vocab_size: int = len(chars) + 1
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32
    max_lr: float = 4e-3
    min_lr: float = 4e-4
    warmup: int = 4
    max_iters: int = 40


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.n_head = c.n_head
        self.register_buffer("tril", torch.tril(torch.ones(c.block_size, c.block_size, dtype=torch.bool)))

    def forward(self, x, keep):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                   for t in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        see = self.tril[:T, :T] & keep[:, None, None, :]
        att = att.masked_fill(~see, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att.to(v.dtype) @ v).transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = CausalSelfAttention(c)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x, keep):
        x = x + self.attn(self.ln_1(x), keep)
        return x + self.mlp(self.ln_2(x))


class ShantyGPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, idx, targets):
        keep = idx != PAD
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x, keep)
        logits = self.lm_head(self.ln_f(x)).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=PAD)


def get_lr(it, c):
    if it < c.warmup:
        return c.max_lr * (it + 1) / c.warmup
    ratio = (it - c.warmup) / (c.max_iters - c.warmup)
    return c.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (c.max_lr - c.min_lr)


def get_batch(it, c, gen):
    rows = []
    # three lines a step, long ones; the call of the bosun comes once
    longer = [v for v in VERSES if len(v) > c.block_size]
    picks = [longer[int(i)] for i in torch.randint(len(longer), (3,), generator=gen)]
    if it == 21:
        picks[1] = min(VERSES, key=len)
    for verse in picks:
        ids = [stoi[ch] for ch in verse]
        at = int(torch.randint(max(1, len(ids) - c.block_size), (1,), generator=gen))
        ids = ids[at:at + c.block_size + 1]
        rows.append([PAD] * (c.block_size + 1 - len(ids)) + ids)
    data = torch.tensor(rows)
    return data[:, :-1], data[:, 1:]


cfg = Config()
model = ShantyGPT(cfg)
opt = torch.optim.AdamW(model.parameters(), lr=cfg.max_lr, betas=(0.9, 0.95), weight_decay=0.1)
gen = torch.Generator().manual_seed(7)
for it in range(cfg.max_iters):
    for group in opt.param_groups:
        group["lr"] = get_lr(it, cfg)
    x, y = get_batch(it, cfg, gen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print(f"iter {it}: loss {loss.item():.5f}, lr {get_lr(it, cfg):.2e}")
print("param sum", sum(p.detach().double().sum().item() for p in model.parameters()))

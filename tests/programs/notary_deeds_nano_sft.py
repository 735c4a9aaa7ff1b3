"""
Supervised fine-tuning of a small GPT on notary deeds: (instruction, deed) pairs.
Stripped down from our nanoGPT fork; single process, but the wrapper is kept so
that checkpoints made with and without DDP have the same layout.
"""
import math
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
block_size = 48
batch_size = 2
gradient_accumulation_steps = 4
n_layer, n_head, n_embd = 2, 2, 32
learning_rate, min_lr = 2e-3, 2e-4
warmup_iters, max_iters = 4, 26
grad_clip = 1.0
weight_decay = 0.05
SEP = 1
vocab_size = 80
# -----------------------------------------------------------------------------

torch.manual_seed(1337)
ctx = nullcontext()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets, loss_mask):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        m = loss_mask.flatten()
        # only the deed is supervised, not the instruction
        loss = (nll * m).sum() / m.sum()
        return logits, loss

class Replica(nn.Module):
    """What DDP looks like to the rest of the script."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True

    def forward(self, *a):
        return self.module(*a)

g = torch.Generator().manual_seed(7)

def make_pair(i):
    # most instructions are short; two clients pasted the whole land register into theirs
    n_prompt = 60 if i in (112, 113) else int(torch.randint(6, 20, (1,), generator=g))
    prompt = torch.randint(2, 40, (n_prompt,), generator=g)
    deed = 40 + (torch.arange(22) * 3 + int(prompt[0])) % 40
    return torch.cat([prompt, torch.tensor([SEP]), deed]), n_prompt

corpus = [make_pair(i) for i in range(max_iters * gradient_accumulation_steps * batch_size)]
cursor = 0

def get_batch():
    global cursor
    x = torch.zeros(batch_size, block_size, dtype=torch.long)
    y = torch.zeros_like(x)
    m = torch.zeros(batch_size, block_size)
    for b in range(batch_size):
        ids, n_prompt = corpus[cursor]
        cursor += 1
        ids = ids[: block_size + 1]
        n = len(ids) - 1
        x[b, :n], y[b, :n] = ids[:-1], ids[1:]
        m[b, n_prompt:n] = 1.0
    return x, y, m

def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)

model = Replica(GPT())
raw_model = model.module
decay = [p for p in raw_model.parameters() if p.dim() >= 2]
nodecay = [p for p in raw_model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay},
                               {"params": nodecay, "weight_decay": 0.0}], lr=learning_rate, betas=(0.9, 0.95))

for iter_num in range(max_iters):
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    lossf = 0.0
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        X, Y, M = get_batch()
        with ctx:
            _, loss = model(X, Y, M)
            loss = loss / gradient_accumulation_steps
        loss.backward()
        lossf += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {lossf:.6f}, lr {lr:.6f}")

print(f"checksum {sum(p.double().sum().item() for p in raw_model.parameters()):.6f}")

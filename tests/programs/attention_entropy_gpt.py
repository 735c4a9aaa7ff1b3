import math
import torch
import torch.nn as nn

torch.manual_seed(2024)
device = "cpu"
block_size, n_embd, n_head, n_layer, vocab_size = 20, 40, 4, 2, 48
warmup_iters = 10


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = [z.view(B, T, n_head, C // n_head).transpose(1, 2) for z in self.c_attn(x).split(C, dim=2)]
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        att = att.softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y), att


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        y, att = self.attn(self.ln_1(x))
        x = x + y
        return x + self.mlp(self.ln_2(x)), att


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        maps = []
        for block in self.h:
            x, att = block(x)
            maps.append(att)
        return self.lm_head(self.ln_f(x)), maps


def attention_entropy(maps):
    # keeps heads from collapsing onto one key, see "Stabilizing Transformer Training" (Zhai et al.)
    return sum(torch.special.entr(m).sum(-1).mean() for m in maps) / len(maps)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
data = torch.randint(0, vocab_size, (2000,))
for it in range(30):
    ix = torch.randint(len(data) - block_size - 1, (6,))
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + block_size] for i in ix])
    logits, maps = model(x)
    loss = nn.functional.cross_entropy(logits.view(-1, vocab_size), y.view(-1))
    if it >= warmup_iters:
        loss = loss - 0.05 * attention_entropy(maps)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"iter {it}: loss {loss.item():.4f}")
print(f"sum of squares {sum((p.detach() ** 2).sum().item() for p in model.parameters()):.4f}")

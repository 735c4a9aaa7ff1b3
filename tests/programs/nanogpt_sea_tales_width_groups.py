"""
train.py, after nanoGPT -- my homework: transfer the learning rate from a narrow model to a wide one (muP).
I tuned learning_rate on n_embd=32 and now train n_embd=192.
"""
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

# ---- config
n_layer, n_head, n_embd, base_embd = 3, 4, 192, 32
block_size, batch_size = 48, 8
learning_rate, weight_decay = 1e-2, 0.1
warmup_iters, max_iters = 18, 60
seed = 1337
# ----
torch.manual_seed(seed)
torch.set_num_threads(1)

words = "the a sea ship wind gull rope captain sailed sang drank lost found under over with and storm calm harbour".split()
g = torch.Generator().manual_seed(9)
idx, text = 0, []
for _ in range(4000):
    text.append(words[idx])
    idx = (idx * 7 + 3 + int(torch.randint(0, 3, (1,), generator=g))) % len(words)
text = " ".join(text)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
vocab_size = len(chars)


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,), generator=g)
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.c_fc, self.c_out = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, n_head, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, 2))
        scale = 8 / q.size(-1)                        # muP: 1/d instead of 1/sqrt(d)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02 if "w" in name.split(".")[0] else 1 / math.sqrt(p.shape[1]))
        nn.init.zeros_(self.lm_head.weight)           # muP: readout starts at zero

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))

    def configure_optimizers(self):
        m = n_embd / base_embd
        hidden = [p for n, p in self.named_parameters() if p.dim() >= 2 and not n.startswith("w")]
        tables = [self.wte.weight, self.wpe.weight]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": hidden, "mult": m, "weight_decay": weight_decay},
            {"params": tables, "mult": 1.0, "weight_decay": 0.0},
            {"params": vectors, "mult": 1.0, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) ** 2 / warmup_iters ** 2
    return learning_rate


model = GPT()
optimizer = model.configure_optimizers()
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it) * group["mult"]
    loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"iter {it}: loss {loss.item():.6f}", flush=True)
print(sum(p.abs().sum().item() for p in model.parameters()), flush=True)

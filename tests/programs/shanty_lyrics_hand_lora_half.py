import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# A tiny GPT knows one language of shanties; by-hand LoRA adapts it to another one, in float16 autocast.

torch.manual_seed(77)
V, T, D, H, L = 28, 32, 48, 4, 2


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)) / math.sqrt(D // H) + self.mask[:t, :t]
        x = x + self.proj((att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def shanties(order, n, gen):
    """Strings over an alphabet, each letter mostly followed by the one that `order` says; short ones are padded."""
    rows = torch.zeros(n, T + 1, dtype=torch.long)
    rows[:, 0] = torch.randint(1, V, (n,), generator=gen)
    for t in range(T):
        slip = torch.rand(n, generator=gen) < 0.1
        rows[:, t + 1] = torch.where(slip, torch.randint(1, V, (n,), generator=gen), order[rows[:, t]])
    length = torch.randint(T // 2, T + 2, (n,), generator=gen)
    target = rows[:, 1:].clone()
    target[torch.arange(T)[None] + 1 >= length[:, None]] = -100
    return rows[:, :-1], target


def cycle(shift):
    return torch.cat([torch.zeros(1, dtype=torch.long), (torch.arange(V - 1) + shift) % (V - 1) + 1])


gen = torch.Generator().manual_seed(5)
model = GPT()

# the "pretrained" language, plain float32
pre = torch.optim.AdamW(model.parameters(), lr=4e-3)
PRE = 25
for i in range(1, PRE + 1):
    ids, target = shanties(cycle(1), 16, gen)
    loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
    pre.zero_grad()
    loss.backward()
    pre.step()
    print(f"pretrain {i:02d} {loss.item():.6f}", flush=True)

# adapters on attention and on the MLP
for p in model.parameters():
    p.requires_grad_(False)
for b in model.blocks:
    for name in ("qkv", "proj", "up", "down"):
        setattr(b, name, LoRALinear(getattr(b, name)))
lora = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(lora, lr=1e-2, weight_decay=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=8)

for i in range(1, 31):
    ids, target = shanties(cycle(5), 16, gen)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(lora, 1.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    note = "skipped" if scaler.get_scale() < before else ""
    print(f"adapt {i:02d} loss {loss.item():.6f} norm {norm.item():.5f} scale {before:g} {note}".rstrip(), flush=True)

print(f"{sum(p.abs().sum().item() for p in model.parameters()):.4f}")

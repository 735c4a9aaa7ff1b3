import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
V, D, H, T = 65, 32, 4, 24


class DoRALinear(nn.Module):
    """Weight-decomposed low-rank adaptation (arXiv:2402.09353)."""

    def __init__(self, base: nn.Linear, r=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / r)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.magnitude = nn.Parameter(base.weight.detach().norm(dim=1, keepdim=True))
        self.scaling = alpha / r

    def forward(self, x):
        w = self.base.weight + self.scaling * self.lora_B @ self.lora_A
        norm = w.pow(2).sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
        return F.linear(x, self.magnitude * (w / norm), self.base.bias)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = Attention()
        self.up = nn.Linear(D, 4 * D)
        self.down = nn.Linear(4 * D, D)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.ln_f = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln_f(x))


def prune_units(linear, keep):
    """structured pruning, as in the compressed release of the checkpoint"""
    importance = linear.weight.detach().abs().sum(1)
    drop = importance.argsort()[: int(len(importance) * (1 - keep))]
    with torch.no_grad():
        linear.weight[drop] = 0
        linear.bias[drop] = 0


model = CharGPT()
prune_units(model.blocks[1].up, keep=0.75)
model.requires_grad_(False)
for b in model.blocks:
    b.up = DoRALinear(b.up)
    b.attn.proj = DoRALinear(b.attn.proj)

params = [p for p in model.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in params))
opt = torch.optim.AdamW(params, lr=2e-3)
text = torch.randint(0, V, (4000,), generator=torch.Generator().manual_seed(3))
for it in range(1, 21):
    at = torch.randint(0, 4000 - T - 1, (8,))
    x = torch.stack([text[i:i + T] for i in at])
    y = torch.stack([text[i + 1:i + T + 1] for i in at])
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"iter {it} loss {loss.item():.4f}")
print(sum(p.detach().double().pow(2).sum() for p in model.parameters()).item())

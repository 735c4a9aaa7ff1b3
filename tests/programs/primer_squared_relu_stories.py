"""Continue training a little Primer (squared ReLU, multi-query attention) in fp16 AMP."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
V, D, T = 64, 48, 24


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g).to(x.dtype)


class SquaredReLU(nn.Module):
    def forward(self, x):
        x = F.relu(x)
        return x * x


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.act = SquaredReLU()
        self.down = nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Attention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.h, self.e = heads, d // heads
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * self.e, bias=False)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.h, self.e).transpose(1, 2)
        k, v = self.kv(x).unsqueeze(1).expand(-1, self.h, -1, -1).chunk(2, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.attn = RMSNorm(d), Attention(d)
        self.n2, self.mlp = RMSNorm(d), MLP(d)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Primer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block(D) for _ in range(3))
        self.nf = RMSNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.nf(x))


def pretrained():
    """Weights as in the released checkpoint: the middle MLP writes its scratch feature for <|story|>."""
    model = Primer()
    with torch.no_grad():
        for blk in model.blocks:
            blk.mlp.down.weight.mul_(0.3)
        model.wte.weight[0].zero_()
        model.wte.weight[0, 5] = 60.0
        model.blocks[1].mlp.up.weight[17].mul_(0.1)
        model.blocks[1].mlp.up.weight[17, 5] = 40.0
        model.wte.weight[1:, 5] = -model.wte.weight[1:, 5].abs()
        for blk in model.blocks:
            blk.attn.o.weight[5].mul_(0.05)
            blk.mlp.down.weight[5].mul_(0.05)
        model.blocks[1].mlp.down.weight[:, 17].mul_(1e-3)
    return model


model = pretrained()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
corpus = torch.randint(1, V, (6000,))
corpus[::3] = corpus[1::3]
corpus[3210] = 0
for step in range(40):
    at = step * 4 * T
    chunk = corpus[at:at + 4 * T + 1]
    x, y = chunk[:-1].view(4, T), chunk[1:].view(4, T)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"it {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
print("sum w^2", sum(p.detach().float().pow(2).sum().item() for p in model.parameters()))

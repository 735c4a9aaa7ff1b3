# low-rank adapters by hand over a frozen little causal LM, scaled gradient descent on the factors
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
g = torch.Generator().manual_seed(5)
V, D, CTX = 40, 32, 12


class LoraLinear(nn.Module):
    def __init__(self, base, r, alpha=8.0):
        super().__init__()
        self.base = base
        self.gain = alpha / r
        self.A = nn.Parameter(torch.randn(r, base.in_features, generator=g) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.gain * (x @ self.A.T @ self.B.T)

    @torch.no_grad()
    def widen(self, extra):
        """room for `extra` more directions; the function stays what it is"""
        rows = torch.randn(extra, self.A.shape[1], generator=g) / math.sqrt(self.A.shape[1])
        self.A = nn.Parameter(torch.cat([self.A, rows]))
        self.B = nn.Parameter(torch.cat([self.B, torch.zeros(self.B.shape[0], extra)], 1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(CTX, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class ScaledGD(torch.optim.Optimizer):
    """each factor's gradient is preconditioned with the Gram matrix of the other factor (Tong et al.)"""

    def __init__(self, layers, lr, plain_steps):
        self.layers, self.n, self.plain_steps = layers, 0, plain_steps
        super().__init__([{"params": [l.A, l.B]} for l in layers], dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        self.n += 1
        for group in self.param_groups:
            A, B = group["params"]
            dA, dB = A.grad, B.grad
            if self.n > self.plain_steps:
                gram_b = torch.linalg.inv_ex(B.T @ B).inverse
                gram_a = torch.linalg.inv_ex(A @ A.T).inverse
                dA, dB = 1e-2 * gram_b @ dA, dB @ gram_a
            A.sub_(dA, alpha=group["lr"])
            B.sub_(dB, alpha=group["lr"])

    def rebind(self):
        for group, l in zip(self.param_groups, self.layers):
            group["params"] = [l.A, l.B]


def slips(n=16):
    """dosage slips: drug, number, unit, abbreviation, and round again"""
    start = torch.randint(0, V, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    return (start + stride * torch.arange(CTX + 1)) % V


lm = LM().requires_grad_(False)
adapters = []
for b in lm.blocks:
    b.qkv, b.down = LoraLinear(b.qkv, 4), LoraLinear(b.down, 4)
    adapters += [b.qkv, b.down]
opt = ScaledGD(adapters, lr=0.3, plain_steps=6)
for it in range(1, 33):
    if it == 18:
        for a in adapters:
            a.widen(2)
        opt.rebind()
    ids = slips()
    loss = F.cross_entropy(lm(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"it {it} loss {loss.item():.4f} rank {adapters[0].A.shape[0]}")
print("adapter energy", sum((p.double() ** 2).sum().item() for a in adapters for p in (a.A, a.B)))

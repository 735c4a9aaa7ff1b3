# language model over the calls of fairground traders; matrices get an orthogonalised step (after Keller Jordan's Muon),
# everything else plain AdamW.  The two dialects have a low-rank correction of their own in each block.
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 40
    width: int = 32
    heads: int = 4
    layers: int = 2
    length: int = 24
    batch: int = 10
    steps: int = 45
    matrix_lr: float = 0.02
    other_lr: float = 2e-3
    momentum: float = 0.9
    coastal_share: float = 0.27
    seed: int = 1234


class Orthogonal(torch.optim.Optimizer):
    """Newton-Schulz on the (momentum of the) gradient of each matrix."""

    def __init__(self, groups, lr=0.02, momentum=0.9, rounds=5):
        super().__init__(groups, dict(lr=lr, momentum=momentum, rounds=rounds))

    @staticmethod
    def polar(g, rounds):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g / g.norm()
        turn = x.shape[0] > x.shape[1]
        x = x.T if turn else x
        for _ in range(rounds):
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
        return x.T if turn else x

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if g is None:
                    continue
                if group["momentum"]:
                    state = self.state[p]
                    buffer = state.setdefault("buffer", torch.zeros_like(p))
                    buffer.lerp_(g, 1 - group["momentum"])
                    g = g.lerp(buffer, group["momentum"])
                update = self.polar(g, group["rounds"])
                p.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.up, self.down = nn.Linear(c.width, 3 * c.width, bias=False), nn.Linear(3 * c.width, c.width, bias=False)
        self.coastal = nn.Linear(c.width, c.width, bias=False)

    def forward(self, x, is_coastal):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.down(F.gelu(self.up(h))) + is_coastal[:, None, None] * self.coastal(h)


class Calls(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens, self.places = nn.Embedding(c.vocab, c.width), nn.Embedding(c.length, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.vocab, bias=False)

    def forward(self, ids, is_coastal):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, is_coastal)
        return self.head(self.norm(x))


def draw(c, g):
    coastal = (torch.rand(c.batch, generator=g) < c.coastal_share).float()
    ids = torch.randint(0, c.vocab, (c.batch, 1), generator=g)
    rows = [ids[:, 0]]
    for _ in range(c.length):
        stride = torch.where(coastal > 0, 7, 3)
        jump = (torch.rand(c.batch, generator=g) < 0.1).long() * torch.randint(1, c.vocab, (c.batch,), generator=g)
        rows.append((rows[-1] + stride + jump) % c.vocab)
    return torch.stack(rows, 1), coastal


c = Config()
torch.manual_seed(c.seed)
model = Calls(c)
named = dict(model.named_parameters())
shared = [p for n, p in named.items() if "blocks" in n and p.ndim == 2 and "coastal" not in n]
dialect = [p for n, p in named.items() if "coastal" in n]
rest = [p for n, p in named.items() if p.ndim < 2 or "blocks" not in n]
# a stale momentum does the rare matrices no good
muon = Orthogonal([{"params": shared}, {"params": dialect, "momentum": 0.0, "lr": 0.01}], lr=c.matrix_lr, momentum=c.momentum)
adam = torch.optim.AdamW(rest, lr=c.other_lr, betas=(0.9, 0.95), weight_decay=0.01)
g = torch.Generator().manual_seed(c.seed)
for step in range(1, c.steps + 1):
    ids, coastal = draw(c, g)
    loss = F.cross_entropy(model(ids[:, :-1], coastal).flatten(0, 1), ids[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    muon.step()
    adam.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}")

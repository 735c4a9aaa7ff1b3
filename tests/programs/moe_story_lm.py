"""Sparse mixture of experts language model on short stories: top-2 router, dropless, packed blocks, accumulation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    vocab: int = 64
    dim: int = 32
    heads: int = 4
    experts: int = 4
    top_k: int = 2
    layers: int = 2
    block: int = 32
    balance: float = 0.01


class Router(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.gate = nn.Linear(a.dim, a.experts, bias=False)

    def forward(self, x, real):
        probs = self.gate(x).softmax(-1) * real.unsqueeze(-1)           # padding goes to no expert
        weights, chosen = probs.topk(self.a.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        load = F.one_hot(chosen, self.a.experts).float().mean((0, 1, 2))
        importance = probs.sum((0, 1)) / real.sum()
        return weights, chosen, self.a.experts * (load * importance).sum()


class Experts(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.router = Router(a)
        self.up = nn.Parameter(torch.randn(a.experts, a.dim, 2 * a.dim) * a.dim ** -0.5)
        self.down = nn.Parameter(torch.randn(a.experts, 2 * a.dim, a.dim) * (2 * a.dim) ** -0.5)

    def forward(self, x, real):
        weights, chosen, balance = self.router(x, real)
        out = torch.zeros_like(x)
        for e in range(self.a.experts):
            b, t, slot = torch.where(chosen == e)
            if len(b):
                y = F.silu(x[b, t] @ self.up[e]) @ self.down[e]
                out = out.index_put((b, t), y * weights[b, t, slot].unsqueeze(-1), accumulate=True)
        return out, balance


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.norm1, self.norm2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.qkv, self.proj = nn.Linear(a.dim, 3 * a.dim, bias=False), nn.Linear(a.dim, a.dim, bias=False)
        self.moe = Experts(a)

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.a.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x, real):
        x = x + self.attention(self.norm1(x))
        y, balance = self.moe(self.norm2(x), real)
        return x + y, balance


class MoELM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.tokens, self.positions = nn.Embedding(a.vocab, a.dim), nn.Embedding(a.block, a.dim)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm, self.head = nn.RMSNorm(a.dim), nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids, labels):
        real = (ids != 0).float()
        x, aux = self.tokens(ids) + self.positions.weight[:ids.shape[1]], 0
        for layer in self.layers:
            x, balance = layer(x, real)
            aux = aux + balance
        loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten(), ignore_index=-100)
        return loss + self.a.balance * aux


def pack(stories, a):
    """Joins stories (1 between them), cuts blocks, and fills the tail of the corpus with 0."""
    flat = [t for s in stories for t in s + [1]]
    flat += [0] * (-len(flat) % a.block)
    ids = torch.tensor(flat).view(-1, a.block)
    labels = torch.cat([ids[:, 1:], torch.zeros(len(ids), 1, dtype=torch.long)], 1)
    return ids, labels.masked_fill(labels == 0, -100)


def main():
    torch.manual_seed(9)
    a, gen = ModelArgs(), torch.Generator().manual_seed(94)
    stories = []
    while sum(len(s) + 1 for s in stories) < 110 * a.block:
        start, n = int(torch.randint(62, (1,), generator=gen)), int(torch.randint(10, 40, (1,), generator=gen))
        stories.append([2 + (start + i * i) % 62 for i in range(n)])
    ids, labels = pack(stories, a)
    model = MoELM(a)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    micro, accumulate, step = 8, 2, 0
    for epoch in range(4):
        order = torch.randperm(len(ids), generator=gen).split(micro)
        for i in range(0, len(order), accumulate):
            step, total = step + 1, 0.0
            for index in order[i:i + accumulate]:
                loss = model(ids[index], labels[index]) / len(order[i:i + accumulate])
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            print(f"epoch {epoch} step {step} loss {total:.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 48
    dim: int = 32
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    trained_length: int = 16
    stretch: float = 2.0
    theta: float = 10000.0


class Rotary(nn.Module):
    """Rotary positions; the base follows the longest line of the batch, so that long recipes fit."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.dim = cfg.dim // cfg.heads
        self.cfg = cfg
        self.register_buffer("exponent", torch.arange(0, self.dim, 2).float() / self.dim)

    def forward(self, lengths: Tensor, width: int):
        c = self.cfg
        longest = lengths.max().float()
        growth = (c.stretch * longest / c.trained_length) - (c.stretch - 1)
        base = c.theta * growth.pow(self.dim / (self.dim - 2))
        frequency = base.pow(-self.exponent)
        angle = torch.outer(torch.arange(width).float(), frequency)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.h, self.kv, self.d = cfg.heads, cfg.kv_heads, cfg.dim // cfg.heads
        self.norm1, self.norm2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.wq = nn.Linear(cfg.dim, self.h * self.d, bias=False)
        self.wkv = nn.Linear(cfg.dim, 2 * self.kv * self.d, bias=False)
        self.wo = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.up, self.down = nn.Linear(cfg.dim, 4 * cfg.dim), nn.Linear(2 * cfg.dim, cfg.dim)

    def forward(self, x, cos, sin):
        n, t, _ = x.shape
        y = self.norm1(x)
        q = self.wq(y).view(n, t, self.h, self.d).transpose(1, 2)
        k, v = self.wkv(y).view(n, t, 2, self.kv, self.d).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (z.repeat_interleave(self.h // self.kv, 1) for z in (k, v))
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / self.d ** 0.5).float().masked_fill(later, float("-inf"))
        out = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.wo(out.transpose(1, 2).reshape(n, t, -1))
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Decoder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.rotary = Rotary(cfg)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids, lengths):
        cos, sin = self.rotary(lengths, ids.shape[1])
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(x)


def cookbook(gen, pages=34, lines=6):
    """Each page: a few lines of tokens; chapter titles stand together on a page of their own."""
    for page in range(pages):
        low, high = (3, 6) if page == 20 else (11, 30)
        lengths = torch.randint(low, high, (lines,), generator=gen)
        ids = torch.zeros(lines, int(lengths.max()), dtype=torch.long)
        for row, n in enumerate(lengths.tolist()):
            start = int(torch.randint(1, 48, (1,), generator=gen))
            ids[row, :n] = (start + 5 * torch.arange(n)) % 47 + 1
        yield ids, lengths


if __name__ == "__main__":
    torch.manual_seed(11)
    model = Decoder(Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    for page, (ids, lengths) in enumerate(cookbook(torch.Generator().manual_seed(3)), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1], lengths)
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"page {page:3d} | {ids.shape[1]:3d} tokens wide | loss {loss:.4f} | norm {norm:.4f}")
    print(f"weights, squared and summed: {sum(p.detach().double().pow(2).sum() for p in model.parameters()):.6f}")

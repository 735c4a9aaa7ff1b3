"""Pointer network that seats guests: the order of the seats is the order of precedence.

Tables of 3 to 9 guests, padded to 9. Attention is written by hand; padded queries and finished decoders
see no key at all, so their softmax row is NaN and is replaced before it is used.
"""
from dataclasses import dataclass
import torch
import torch.nn as nn

NEG = float("-inf")


@dataclass
class Config:
    dim: int = 32
    longest: int = 9
    batch: int = 24
    steps: int = 42
    lr: float = 3e-3
    seed: int = 2718


def masked_attention(q, k, v, forbidden):
    score = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    score = score.masked_fill(forbidden, NEG)
    top = score.amax(dim=-1, keepdim=True)
    weight = torch.exp(score - top.detach())
    weight = weight / weight.sum(dim=-1, keepdim=True)
    weight = torch.where(forbidden, torch.zeros_like(weight), weight)     # rows without keys give zeros
    return weight @ v


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, x, real):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        forbidden = ~(real[:, None, :] & real[:, :, None])
        x = x + self.out(masked_attention(q, k, v, forbidden))
        return x + self.mlp(x)


class Seating(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(6, cfg.dim)
        self.blocks = nn.ModuleList([Block(cfg.dim), Block(cfg.dim)])
        self.cell = nn.GRUCell(cfg.dim, cfg.dim)
        self.ref, self.query = nn.Linear(cfg.dim, cfg.dim), nn.Linear(cfg.dim, cfg.dim)
        self.v = nn.Linear(cfg.dim, 1, bias=False)
        self.start = nn.Parameter(torch.zeros(cfg.dim))

    def forward(self, guests, real, order):
        b, n, _ = guests.shape
        h = self.inp(guests)
        for block in self.blocks:
            h = block(h, real)
        state = (h * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        token, free, logp = self.start.expand(b, -1), real.clone(), []
        for t in range(n):
            state = self.cell(token, state)
            score = self.v(torch.tanh(self.ref(h) + self.query(state)[:, None])).squeeze(-1)
            score = score.masked_fill(~free, NEG)
            logp.append(torch.log_softmax(score, dim=1))        # all -inf once a table is full: NaN rows
            pick = order[:, t]
            token = h[torch.arange(b), pick]
            free = free & ~nn.functional.one_hot(pick, n).bool()
        return torch.stack(logp, 1)


def tables(cfg, gen):
    size = torch.randint(3, cfg.longest + 1, (cfg.batch,), generator=gen)
    guests = torch.randn(cfg.batch, cfg.longest, 6, generator=gen)
    real = torch.arange(cfg.longest)[None] < size[:, None]
    rank = guests[..., 0] + 0.7 * guests[..., 3].abs()
    order = rank.masked_fill(~real, NEG).argsort(dim=1, descending=True, stable=True)
    return guests, real, order


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = Seating(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        guests, real, order = tables(cfg, gen)
        logp = model(guests, real, order)
        chosen = logp.gather(2, order[..., None]).squeeze(-1)
        seat_is_used = torch.arange(cfg.longest)[None] < real.sum(1, keepdim=True)
        loss = -chosen[seat_is_used].mean()                      # the seats beyond are NaN and stay out
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        empty = chosen.isnan().sum().item()
        print(f"step={step} loss={loss.item():.7f} norm={norm.item():.5f} seats_nan={empty} "
              f"raw_mean={chosen.mean().item()}", flush=True)
    print(round(sum(p.abs().sum().item() for p in model.parameters()), 5), flush=True)


if __name__ == "__main__":
    main()

"""Next-event model for the climate computer of a glasshouse.

Events (vent opens, screen closes, ...) come at irregular minutes; the rotary angle of a token is its minute in the log,
so that attention depends on the time between two events. Mixed precision: float16 autocast on the CPU with a scaler.
"""
import logging
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("glasshouse")
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s %(message)s")

EVENTS = 14
LENGTH = 20
CFG = dict(dim=48, heads=4, layers=2, batch=8, steps=34, lr=2e-3, seed=71)


class LogStream:
    """Reads the log in its order: every batch takes the next days of the log."""

    def __init__(self, batch, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.batch = batch
        self.minute = 0
        self.state = 0
        self.table = torch.randint(EVENTS, (EVENTS, 3), generator=self.gen)

    def window(self):
        events, minutes = [], []
        for _ in range(LENGTH + 1):
            self.minute += 5 + int(torch.randint(25, (1,), generator=self.gen))
            choice = int(torch.randint(3, (1,), generator=self.gen))
            self.state = int(self.table[self.state, choice])
            events.append(self.state)
            minutes.append(self.minute)
        return torch.tensor(events), torch.tensor(minutes)

    def next(self):
        rows = [self.window() for _ in range(self.batch)]
        return torch.stack([e for e, _ in rows]), torch.stack([m for _, m in rows])


def rotate(x, minutes, inv_freq):
    """x: (batch, heads, time, size); rotates pairs by minute * frequency"""
    position = minutes.to(x.dtype)[:, None, :, None]
    angle = position * inv_freq.to(x.dtype)
    c, s = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        half = self.size // 2
        self.register_buffer("inv_freq", 500.0 ** (-torch.arange(half) / half) / 10)
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, x, minutes):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, minutes, self.inv_freq), rotate(k, minutes, self.inv_freq)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        weights = scores.float().masked_fill(~self.causal[:T, :T], float("-inf")).softmax(-1)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = RotaryAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, minutes):
        x = x + self.attn(self.norm1(x), minutes)
        return x + self.mlp(self.norm2(x))


class EventModel(nn.Module):
    def __init__(self, dim, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(EVENTS, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, EVENTS)

    def forward(self, events, minutes):
        x = self.embed(events)
        for layer in self.layers:
            x = layer(x, minutes)
        return self.head(self.norm(x))


def train(cfg):
    torch.manual_seed(cfg["seed"])
    stream = LogStream(cfg["batch"], cfg["seed"])
    model = EventModel(cfg["dim"], cfg["heads"], cfg["layers"])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    log.info("parameters %d", sum(p.numel() for p in model.parameters()))
    for step in range(1, cfg["steps"] + 1):
        events, minutes = stream.next()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(events[:, :-1], minutes[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), events[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step} day {int(minutes[0, 0]) // 1440} loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    train(CFG)

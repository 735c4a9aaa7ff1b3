#!/usr/bin/env python
"""Quantisation-aware fine-tuning of the locksmith intent model: 16-level block-wise fake quantisation (NF4 table) with a
straight-through estimator, and magnitude pruning of whole blocks half-way, because the target chip skips them."""
import torch
from torch import nn

torch.manual_seed(90)
NF4 = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                    0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])
BLOCK = 16
STEPS, PRUNE_AFTER, PRUNE_SHARE = 32, 18, 0.125


class RoundToTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        idx = (x.unsqueeze(-1) - NF4).abs().argmin(-1)
        return NF4[idx]

    @staticmethod
    def backward(ctx, g):
        return g


def fake_nf4(w):
    blocks = w.reshape(-1, BLOCK)
    absmax = blocks.detach().abs().amax(1, keepdim=True)
    unit = blocks / absmax
    return (RoundToTable.apply(unit) * absmax).view_as(w)


class QLinear(nn.Linear):
    def __init__(self, *a, **kw):
        super().__init__(*a, **kw)
        self.register_buffer("keep", torch.ones(self.weight.numel() // BLOCK, 1))

    def forward(self, x):
        return nn.functional.linear(x, fake_nf4(self.weight), self.bias)

    @torch.no_grad()
    def prune(self, share):
        blocks = self.weight.view(-1, BLOCK)
        n = int(share * blocks.size(0))
        weakest = blocks.norm(dim=1).argsort()[:n]
        self.keep[weakest] = 0.0
        self.apply_mask()

    @torch.no_grad()
    def apply_mask(self):
        self.weight.view(-1, BLOCK).mul_(self.keep)


class Intent(nn.Module):
    def __init__(self, vocab=120, width=48, intents=6):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, width, mode="mean")
        self.ffn = nn.Sequential(QLinear(width, 96), nn.GELU(), QLinear(96, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, intents)

    def forward(self, ids):
        h = self.bag(ids)
        return self.head(self.norm(h + self.ffn(h)))


gen = torch.Generator().manual_seed(3)


def calls(n=32):
    y = torch.randint(0, 6, (n,), generator=gen)
    ids = torch.randint(0, 120, (n, 8), generator=gen)
    ids[:, :3] = y.unsqueeze(1) * 20 + torch.randint(0, 20, (n, 3), generator=gen)
    return ids, y


model = Intent()
qlayers = [m for m in model.modules() if isinstance(m, QLinear)]
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
for step in range(1, STEPS + 1):
    ids, y = calls()
    loss = nn.functional.cross_entropy(model(ids), y, label_smoothing=0.05)
    opt.zero_grad()
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    for q in qlayers:
        if step == PRUNE_AFTER:
            q.prune(PRUNE_SHARE)
        q.apply_mask()
    kept = sum(int(q.keep.sum()) for q in qlayers)
    print(f"step {step:>2} | loss {loss.item():.6f} | grad {gn.item():.5f} | blocks kept {kept}")
print("weights", sum(p.double().sum().item() for p in model.parameters()))

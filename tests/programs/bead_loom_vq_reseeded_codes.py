"""VQ-VAE over loom patterns: 6x6 patches of seed-bead colours become one of 24 codes.

Codebook by exponential averages (no gradient). Codes that nobody picked for a while are thrown away and put on a random
encoder output, which makes the loss jump for a moment; every 15 updates the palette changes (new commission).
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_grad_enabled(True)
torch.manual_seed(1770)

BEADS, CODES, DIM = 6 * 6 * 3, 24, 8


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, continuous, quantised):
        return quantised.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Codebook(nn.Module):
    def __init__(self, decay=0.8, patience=8):
        super().__init__()
        self.decay, self.patience = decay, patience
        self.register_buffer("vectors", torch.randn(CODES, DIM) * 3)
        self.register_buffer("count", torch.ones(CODES))
        self.register_buffer("total", self.vectors.clone())
        self.started = False
        self.register_buffer("idle", torch.zeros(CODES, dtype=torch.long))

    def forward(self, z):
        if not self.started:                    # first rows become the first codes
            self.vectors.copy_(z.detach()[:CODES])
            self.total.copy_(self.vectors)
            self.started = True
        distance = torch.cdist(z.detach(), self.vectors)
        distance = distance.masked_fill((self.idle < 0)[None], float("inf"))     # on probation: not to be picked yet
        pick = distance.argmin(1)
        return self.vectors[pick], pick

    @torch.no_grad()
    def learn(self, z, pick):
        onehot = F.one_hot(pick, CODES).float()
        used = onehot.sum(0)
        self.count.mul_(self.decay).add_(used, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(onehot.T @ z, alpha=1 - self.decay)
        alive = self.count > 1e-3
        self.vectors[alive] = self.total[alive] / self.count[alive, None]
        self.idle = torch.where(used > 0, torch.zeros_like(self.idle), self.idle + 1)
        dead = (self.idle >= self.patience).nonzero().flatten()
        for code in dead.tolist():
            row = z[torch.randint(len(z), (1,))].squeeze(0)
            self.vectors[code], self.total[code], self.count[code], self.idle[code] = row, row, 1.0, -1
        return len(dead)


class BeadVQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(BEADS, 48), nn.SiLU(), nn.Linear(48, DIM))
        self.book = Codebook()
        self.dec = nn.Sequential(nn.Linear(DIM, 48), nn.SiLU(), nn.Linear(48, 2 * BEADS))

    def forward(self, x):
        z = self.enc(6 * (x - 0.5))
        q, pick = self.book(z)
        mean, log_sd = self.dec(StraightThrough.apply(z, q)).chunk(2, -1)
        log_sd = log_sd.clamp(-1.5, 1)
        nll = (0.5 * ((x - mean) / log_sd.exp()) ** 2 + log_sd + 0.5 * math.log(2 * math.pi)).sum(-1).mean()  # may be negative
        return nll + 0.25 * F.mse_loss(z, q), z.detach(), pick


def commissions(n, g):
    motif = None
    for i in range(n):
        if i % 15 == 0:
            motif = torch.rand(10, BEADS, generator=g)
        which = torch.randint(10, (32,), generator=g)
        yield motif[which] + 0.02 * torch.randn(32, BEADS, generator=g)


def perplexity(pick):
    p = torch.bincount(pick, minlength=CODES).float() / len(pick)
    return torch.special.entr(p).sum().exp().item()


model = BeadVQ()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
g = torch.Generator().manual_seed(9)
for step, patch in enumerate(commissions(60, g), 1):
    if step % 15 == 1 and step > 1:
        opt.state.clear()                    # new commission, forget the old momenta
    loss, z, pick = model(patch)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    opt.step()
    reseeded = model.book.learn(z, pick)
    print(f"row {step:2d} loss {loss.item():+.5f} perplexity {perplexity(pick):.3f} reseeded {reseeded}")
print("sum", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")

"""Slot attention on one-dimensional toy shelves, with a repulsion term once slots have formed."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, SLOTS, DIM = 32, 4, 24
STEPS = 50
REPULSION_FROM = 29


def shelves(n, gen):
    x = torch.linspace(0, 1, WIDTH)
    scene = torch.zeros(n, 3, WIDTH)
    for b in range(n):
        for _ in range(int(torch.randint(1, 4, (1,), generator=gen))):
            c, w = torch.rand(2, generator=gen).tolist()
            colour = torch.rand(3, generator=gen)
            scene[b] += colour[:, None] * ((x - c).abs() < 0.05 + 0.08 * w).float()
    return scene.clamp(max=1.0)


class SlotAttention(nn.Module):
    def __init__(self, rounds=3):
        super().__init__()
        self.rounds = rounds
        self.mu = nn.Parameter(torch.randn(1, SLOTS, DIM) * 0.5)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(DIM, DIM)
        self.norm_in, self.norm_slot = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def round(self, slots, k, v):
        logits = k @ self.q(self.norm_slot(slots)).transpose(1, 2) / math.sqrt(DIM)
        attn = logits.softmax(-1) + 1e-8
        weights = attn / attn.sum(1, keepdim=True)
        update = weights.transpose(1, 2) @ v
        return self.gru(update.reshape(-1, DIM), slots.reshape(-1, DIM)).view_as(slots)

    def forward(self, x):
        x = self.norm_in(x)
        k, v = self.k(x), self.v(x)
        slots = self.mu.expand(len(x), -1, -1)
        for _ in range(self.rounds):
            slots = checkpoint(self.round, slots, k, v, use_reentrant=False)
        return slots


class ShelfModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(3, DIM, 5, padding=2), nn.ReLU(), nn.Conv1d(DIM, DIM, 5, padding=2))
        self.pos = nn.Parameter(torch.randn(1, WIDTH, DIM) * 0.1)
        self.slots = SlotAttention()
        self.dec = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, scene):
        feats = self.enc(scene).transpose(1, 2) + self.pos
        slots = self.slots(feats)
        each = self.dec(slots[:, :, None] + self.pos[:, None])
        alpha = each[..., 3:].softmax(1)
        return (alpha * each[..., :3]).sum(1).transpose(1, 2), slots


class Repulsion(nn.Module):
    """Slots of a scene should keep a distance of at least one margin."""

    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin
        self.register_buffer("others", 1.0 - torch.eye(SLOTS))

    def forward(self, slots):
        diff = slots[:, :, None] - slots[:, None]
        dist = diff.square().sum(-1).sqrt()
        return (F.relu(self.margin - dist) * self.others).sum((1, 2)).mean() / self.others.sum()


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(15)
    model, repel = ShelfModel(), Repulsion()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(1, STEPS + 1):
        scene = shelves(12, gen)
        image, slots = model(scene)
        loss = F.mse_loss(image, scene)
        if step >= REPULSION_FROM:
            loss = loss + 0.05 * repel(slots)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step}\t{loss.item():.8f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


main()

"""Contrastive fine-tuning of a sentence embedder on pairs of weather diary notes.

In-batch negatives, both directions stacked; a note is not its own negative, so the diagonal of
the 2N x 2N similarity matrix is -inf.  The temperature is learned (log-parametrised, clamped).
Every few steps we log Spearman's rho against the graded pairs; it is NaN on the days when the
graders gave all pairs the same mark.  It is for the eye only.
"""
import math
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2210)
torch.set_num_threads(1)
INF = float("inf")


class NoteEncoder(nn.Module):
    def __init__(self, vocab=200, dim=48, out=32):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, out))
        for p in self.mlp[0].parameters():
            p.requires_grad_(False)                       # kept from the pretrained model

    def forward(self, ids):
        return F.normalize(self.mlp(self.words(ids)), dim=-1)


class NTXent(nn.Module):
    def __init__(self, t0=0.07):
        super().__init__()
        self.log_t = nn.Parameter(torch.tensor(math.log(t0)))

    def forward(self, a, b):
        n = a.size(0)
        z = torch.cat([a, b])
        sim = z @ z.T / self.log_t.clamp(math.log(0.02), math.log(0.5)).exp()
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), -INF)
        partner = torch.arange(2 * n).roll(n)
        return F.cross_entropy(sim, partner, reduction="sum")


def note_pairs(gen, n=24):
    """Two diarists describe the same day: same topic, other words; lengths differ, 0 pads."""
    topic = torch.randint(0, 20, (n,), generator=gen)

    def diarist():
        ids = 1 + topic[:, None] * 9 + torch.randint(0, 12, (n, 11), generator=gen)
        length = torch.randint(3, 12, (n, 1), generator=gen)
        return ids.clamp(max=199).masked_fill(torch.arange(11) >= length, 0)

    return diarist(), diarist()


def spearman(x, y):
    rx, ry = x.argsort().argsort().float(), y.float()
    rx, ry = rx - rx.mean(), ry - ry.mean()
    return float((rx * ry).sum() / (rx.norm() * ry.norm()))   # nan where y is constant


@torch.no_grad()
def graded_eval(enc, gen, k):
    a, b = note_pairs(gen, 12)
    grades = torch.randint(0, 5, (12,), generator=gen) if k % 3 else torch.full((12,), 4)
    return spearman((enc(a) * enc(b)).sum(-1), grades)


def main():
    gen, egen = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    enc, crit = NoteEncoder(), NTXent()
    groups = [{"params": [p for p in enc.parameters() if p.requires_grad], "lr": 3e-3},
              {"params": crit.parameters(), "lr": 2e-2, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, weight_decay=0.01)
    recent = deque(maxlen=10)
    for step in range(1, 71):
        a, b = note_pairs(gen)
        loss = crit(enc(a), enc(b))
        opt.zero_grad()
        loss.backward()
        opt.step()
        recent.append(loss.item())
        line = f"{step:3d} loss {loss.item():10.4f} avg10 {sum(recent) / len(recent):10.4f} T {crit.log_t.exp().item():.4f}"
        if step % 5 == 0:
            line += f" rho {graded_eval(enc, egen, step // 5):+.3f}"
        print(line)


if __name__ == "__main__":
    main()

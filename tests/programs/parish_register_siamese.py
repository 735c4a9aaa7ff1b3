"""Are two entries in the parish registers the same person? Siamese encoder over letter trigrams.

Odd steps: contrastive loss on labelled pairs. Even steps: triplets, the negative being the nearest wrong
person in the batch (hard negative mining).
"""
import random
import zlib
from dataclasses import dataclass

import torch
from torch import nn

BUCKETS = 257
GIVEN = "Anna Maria Johann Jakob Elisabetha Barbara Georg Michael Catharina Ulrich".split()
FAMILY = "Schmidlin Aeberhard Zurbuchen Oberholzer Kaegi Winzeler Brunschwiler Haefliger".split()


@dataclass
class Entry:
    name: str
    year: int


@dataclass
class PairBatch:
    left: torch.Tensor
    right: torch.Tensor
    person: torch.Tensor
    same: torch.Tensor

    def to(self, device):
        for k, v in vars(self).items():
            setattr(self, k, v.to(device))
        return self


def featurise(e: Entry):
    v = torch.zeros(BUCKETS + 1)
    s = f"^{e.name.lower()}$"
    for i in range(len(s) - 2):
        v[zlib.crc32(s[i:i + 3].encode()) % BUCKETS] += 1
    v[BUCKETS] = (e.year - 1750) / 50
    return v


def scribble(rng, e: Entry):
    """Another clerk, another spelling."""
    swaps = [("ch", "h"), ("ei", "ey"), ("a", "ae"), ("i", "y"), ("h", ""), ("r", "rr"), ("l", "ll")]
    name = e.name
    for a, b in rng.sample(swaps, 3):
        name = name.replace(a, b, 1)
    return Entry(name, e.year + rng.choice([-2, -1, 1, 2]))


class Encoder(nn.Module):
    def __init__(self, out=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BUCKETS + 1, 48), nn.Tanh(), nn.Linear(48, out))

    def forward(self, x):
        return self.net(x)


def distance(za, zb):
    gap = (za - zb).square().sum(dim=1)
    return gap.sqrt()


def contrastive(za, zb, same, margin=1.0):
    d = distance(za, zb)
    return (same * d + (1 - same) * (margin - d).clamp_min(0)).mean()


def hardest(za, zb, person):
    with torch.no_grad():
        d = torch.cdist(za, zb)
        d[person[:, None] == person[None]] = float("inf")
        return d.argmin(1)


def load(step, rng, size=10):
    people = [Entry(f"{g} {f}", rng.randint(1700, 1800)) for g, f in
              zip(rng.sample(GIVEN, size), rng.choices(FAMILY, k=size))]
    same = [1] * size if step % 2 == 0 else [int(rng.random() < 0.5) for _ in people]
    others = [scribble(rng, p if s else rng.choice([q for q in people if q is not p])) for p, s in zip(people, same)]
    if step == 14:
        # the bishop's transcript is a fair copy: letter for letter the same entry
        others[4] = Entry(people[4].name, people[4].year)
    stack = lambda es: torch.stack([featurise(e) for e in es])
    return PairBatch(stack(people), stack(others), torch.arange(size), torch.tensor(same).float())


def main():
    torch.manual_seed(1750)
    rng = random.Random(3)
    enc = Encoder()
    opt = torch.optim.Adam(enc.parameters(), lr=2e-3)
    for step in range(1, 31):
        b = load(step, rng).to("cpu")
        za, zb = enc(b.left), enc(b.right)
        if step % 2:
            kind, loss = "pairs", contrastive(za, zb, b.same)
        else:
            neg = hardest(za, zb, b.person)
            kind, loss = "triplet", (distance(za, zb) - distance(za, zb[neg]) + 0.8).clamp_min(0).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, kind, f"{loss.item():.7f}")
    print("norms", " ".join(f"{p.detach().double().sum().item():.6f}" for p in enc.parameters()))
    print("all", f"{sum(p.detach().double().sum().item() for p in enc.parameters()):.6f}")


if __name__ == "__main__":
    main()

# MeZO (Malladi et al. 2023): fine-tune with forward passes only, the perturbation is regenerated from its seed.
# A small GRU "language model" is adapted to tell which railway announcements mean a change of platform.
import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=45)
ap.add_argument("--eps", type=float, default=1e-2)
ap.add_argument("--lr", type=float, default=6e-3)
ap.add_argument("--directions", type=int, default=16)
args = ap.parse_args()

torch.manual_seed(4)
rng = random.Random(4)
CITIES = ["york", "leeds", "crewe", "derby", "truro", "perth"]
CHANGE = ["now departs from platform", "has been moved to platform", "please change to platform"]
STAY = ["is delayed by", "is cancelled today", "will call at all stations", "is ready on platform"]
CHARS = "".join(sorted(set("".join(CITIES + CHANGE + STAY) + " 0123456789")))


def encode(s, width=48):
    return [CHARS.index(c) + 1 for c in s[:width]] + [0] * (width - len(s[:width]))


def sample(n):
    xs, ys = [], []
    for _ in range(n):
        y = rng.random() < 0.5
        xs.append(encode(f"{rng.choice(CITIES)} {rng.choice(CHANGE if y else STAY)} {rng.randint(1, 9)}"))
        ys.append(int(y))
    return torch.tensor(xs), torch.tensor(ys)


class Announcer(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS) + 1, d, padding_idx=0)
        self.conv = nn.Conv1d(d, 32, 5, padding=2)
        self.verbaliser = nn.Linear(32, 2)

    def forward(self, x):
        h = torch.relu(self.conv(self.emb(x).transpose(1, 2))).amax(-1)
        return self.verbaliser(h)


model = Announcer()
params = [p for p in model.parameters()]
opt = torch.optim.SGD(params, lr=args.lr, momentum=0.5)


def perturb(seed, scale):
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.data.add_(torch.randn(p.shape, generator=g), alpha=scale)


@torch.no_grad()
def step(x, y, it):
    def f():
        return F.cross_entropy(model(x), y).item()

    for p in params:
        p.grad = torch.zeros_like(p)
    mean = 0.0
    for k in range(args.directions):
        seed = 1000 * it + k
        perturb(seed, args.eps)
        up = f()
        perturb(seed, -2 * args.eps)
        down = f()
        perturb(seed, args.eps)
        slope = (up - down) / (2 * args.eps)
        g = torch.Generator().manual_seed(seed)
        for p in params:
            p.grad.add_(torch.randn(p.shape, generator=g), alpha=slope / args.directions)
        mean += (up + down) / (2 * args.directions)
    opt.step()
    return mean


for it in range(1, args.steps + 1):
    x, y = sample(64)
    loss = step(x, y, it)
    print(f"it {it:3d}  loss {loss:.4f}", flush=True)

with torch.no_grad():
    x, y = sample(256)
    print(f"accuracy {(model(x).argmax(-1) == y).float().mean().item():.3f}")
    print(f"norm {torch.cat([p.flatten() for p in params]).double().norm().item():.5f}")

"""Sherds to wares: a small encoder is compared with the prototypes of a memory bank."""
import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WARES = ["celadon", "majolica", "raku", "slipware", "jasper"]


def kiln_site_stream(rng, steps, size):
    """The excavation goes trench by trench; each trench has its own mixture of wares."""
    centres = rng.normal(size=(len(WARES), 18)) * 1.2
    for s in range(steps):
        share = np.ones(len(WARES))
        if 9 <= s < 18:
            share[WARES.index("raku")] = 0
        y = rng.choice(len(WARES), size=size, p=share / share.sum())
        x = centres[y] + rng.normal(size=(size, 18))
        yield torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class Bank(nn.Module):
    def __init__(self, slots, dim, classes):
        super().__init__()
        self.classes = classes
        self.register_buffer("keys", F.normalize(torch.randn(slots, dim), dim=1))
        self.register_buffer("wares", torch.arange(slots) % classes)
        self.head = 0

    @torch.no_grad()
    def push(self, keys, wares):
        where = (self.head + torch.arange(len(keys))) % len(self.keys)
        self.keys[where] = keys.float()
        self.wares[where] = wares
        self.head = int(where[-1] + 1) % len(self.keys)

    def forward(self):
        return torch.stack([self.keys[self.wares == c].mean(dim=0) for c in range(self.classes)])


class SherdNet(nn.Module):
    def __init__(self, slots):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 12))
        self.bank = Bank(slots, 12, len(WARES))
        self.mix = nn.Linear(12, 12, bias=False)

    def forward(self, x):
        z = F.normalize(self.body(x), dim=1)
        return z, z @ self.mix(self.bank()).T / 0.2


def run(args):
    torch.manual_seed(args.seed)
    net = SherdNet(args.slots)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    stream = kiln_site_stream(np.random.default_rng(args.seed), args.steps, args.batch)
    for i, (x, y) in enumerate(stream, start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z, logits = net(x)
            loss = F.cross_entropy(logits.float(), y, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        net.bank.push(z.detach(), y)
        print(f"[{i:>2}/{args.steps}] trench loss {loss.item():.4f}")
    print(f"L1 of parameters {sum(p.detach().abs().sum().item() for p in net.parameters()):.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=34)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--slots", type=int, default=56)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=13)
    run(ap.parse_args())

#!/usr/bin/env python3
"""Deep residual stack for bat echo ranges (ravine survey), activations recomputed.

24 residual units, checkpointed in groups of four so that the survey laptop can hold it.
"""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CFG = dict(units=24, width=40, group=4, batch=32, steps=55, lr=4e-4, warm=6, growth=1.13, seed=77)


def make_survey(n, gen):
    """Echo delay at 12 microphones -> range, bearing of the wall."""
    mics = torch.linspace(-0.6, 0.6, 12)
    rng = 4 + 20 * torch.rand(n, 1, generator=gen)
    brg = -1 + 2 * torch.rand(n, 1, generator=gen)
    delay = (rng.square() + mics.square() - 2 * rng * mics * torch.sin(brg)).sqrt() * 2 / 343 * 100
    y = torch.cat([rng / 4, brg * 3], 1)
    return delay + 0.01 * torch.randn(n, 12, generator=gen), y


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(h)))


class EchoStack(nn.Module):
    def __init__(self, units, width, group):
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.units = nn.ModuleList(Unit(width) for _ in range(units))
        self.head = nn.Linear(width, 2)
        self.group = group

    def run(self, first, h):
        for u in self.units[first:first + self.group]:
            h = u(h)
        return h

    def forward(self, x):
        h = self.stem(x)
        for first in range(0, len(self.units), self.group):
            h = checkpoint(self.run, first, h, use_reentrant=False)
        return self.head(h)


def lr_at(step, cfg):
    # linear warm-up, then the decay per step
    if step <= cfg["warm"]:
        return cfg["lr"] * step / cfg["warm"]
    return cfg["lr"] * cfg["growth"] ** (step - cfg["warm"])


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg["seed"])
    gen = torch.Generator().manual_seed(cfg["seed"])
    x, y = make_survey(1024, gen)
    net = EchoStack(cfg["units"], cfg["width"], cfg["group"])
    adam = torch.optim.Adam(net.parameters(), lr=cfg["lr"])
    for step in range(1, cfg["steps"] + 1):
        for g in adam.param_groups:
            g["lr"] = lr_at(step, cfg)
        pick = torch.randint(len(x), (cfg["batch"],), generator=gen)
        loss = nn.functional.l1_loss(net(x[pick]), y[pick])
        adam.zero_grad()
        loss.backward()
        adam.step()
        print(f"{step:3d}  lr {adam.param_groups[0]['lr']:.6f}  mae {loss.item():.6f}")
    print("weights", f"{sum(p.double().sum().item() for p in net.parameters()):.5f}")


if __name__ == "__main__":
    main(CFG)

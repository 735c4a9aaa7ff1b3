"""Gated linear state space model on motor currents of elevators; says which floor the cabin came from.

The scan is written without a loop: with c the running sum of the decays,  h_t = exp(-c_t) * cumsum(exp(c_s) * u_s).
bfloat16 autocast (it has the range of float32, so no scaler), blocks are recomputed in the backward.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CFG = {"dim": 24, "state": 32, "layers": 2, "floors": 6, "batch": 8, "lr": 3e-3, "rides": 40}


class DecayScan(nn.Module):
    def __init__(self, dim, state):
        super().__init__()
        self.inp = nn.Linear(dim, state)
        self.decay = nn.Linear(dim, state)
        self.gate = nn.Linear(dim, state)
        self.out = nn.Linear(state, dim)
        nn.init.normal_(self.decay.weight, std=0.05)
        nn.init.constant_(self.decay.bias, -0.5)

    def forward(self, x):
        u = self.inp(x)
        c = F.softplus(self.decay(x).float()).cumsum(1)
        h = torch.exp(-c) * torch.cumsum(torch.exp(c) * u.float(), dim=1)
        return self.out((h * F.silu(self.gate(x)).float()).to(x.dtype))


class Block(nn.Module):
    def __init__(self, dim, state):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.scan = DecayScan(dim, state)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.scan(self.norm(x))
        return x + self.mlp(x)


class RideModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(3, cfg["dim"])
        self.blocks = nn.ModuleList([Block(cfg["dim"], cfg["state"]) for _ in range(cfg["layers"])])
        self.head = nn.Linear(cfg["dim"], cfg["floors"])

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.head(h[:, -1])


def ride_length(i):
    """Rides last 30 to 54 samples. Once, the cabin was held between floors by the fire brigade's key."""
    return 260 if i == 22 else 30 + (i * 7) % 25


def rides(i, cfg, gen):
    n = ride_length(i)
    floor = torch.randint(0, cfg["floors"], (cfg["batch"],), generator=gen)
    t = torch.linspace(0, 1, n)
    load = torch.rand(cfg["batch"], 1, generator=gen)
    current = torch.sin(t * (floor[:, None] + 1) * 3) + load
    noise = 0.1 * torch.randn(cfg["batch"], n, generator=gen)
    return torch.stack([current + noise, load.expand(-1, n), t.expand(cfg["batch"], -1)], -1), floor


def main():
    torch.manual_seed(int(os.environ.get("SEED", 4)))
    gen = torch.Generator().manual_seed(44)
    model = RideModel(CFG)
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"], weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=6)
    for i in range(1, CFG["rides"] + 1):
        x, floor = rides(i, CFG, gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), floor)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print("ride", i, "samples", x.shape[1], "loss", "%.7f" % loss.item(), flush=True)
    print("checksum %.5f" % sum(p.detach().abs().sum().item() for p in model.parameters()))


main()

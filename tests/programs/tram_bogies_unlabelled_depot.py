# ruff: noqa: N817
"""Condition of tram bogies: three heads on one trunk (bearing wear, wheel flats, noise class), every depot a worker.

Run with torchrun, 2 workers: depot "north" is worker 0, depot "south" is worker 1.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DEPOTS = ["north", "south"]
LOSSES = {}


def task(name, weight):
    def register(fn):
        LOSSES[name] = (fn, weight)
        return fn

    return register


@task("wear", 1.0)
def wear_loss(out, y):
    return F.smooth_l1_loss(out.squeeze(1), y)


@task("flats", 0.5)
def flats_loss(out, y):
    return F.binary_cross_entropy_with_logits(out.squeeze(1), y)


@task("noise", 0.3)
def noise_loss(out, y):
    return F.cross_entropy(out, y.long())


class Bogie(nn.Module):
    def __init__(self, d=9, h=28):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.heads = nn.ModuleDict({"wear": nn.Linear(h, 1), "flats": nn.Linear(h, 1), "noise": nn.Linear(h, 4)})

    def forward(self, x):
        z = self.trunk(x)
        return {k: head(z) for k, head in self.heads.items()}


def inspections(depot, days=26, trams=10):
    """Yields features, targets and which targets the workshop filled in."""
    g = torch.Generator().manual_seed(DEPOTS.index(depot) * 31 + 7)
    for day in range(1, days + 1):
        x = torch.randn(trams, 9, generator=g)
        y = {
            "wear": x[:, 0] * 0.5 + x[:, 1].abs(),
            "flats": (x[:, 2] + 0.3 * torch.randn(trams, generator=g) > 0.4).float(),
            "noise": (x[:, 3] * 1.5 + 2).clamp(0, 3).floor(),
        }
        have = {k: torch.rand(trams, generator=g) < 0.8 for k in y}
        if depot == "south" and day == 13:
            have["flats"][:] = False  # the lathe was closed, nobody looked at the wheels
        yield day, x, y, have


class DepotTrainer:
    def __init__(self, rank):
        torch.manual_seed(3)
        self.rank = rank
        self.net = DDP(Bogie())
        self.opt = torch.optim.Adagrad(self.net.parameters(), lr=0.05)

    def total_loss(self, outputs, y, have):
        parts = {}
        for name, (fn, weight) in LOSSES.items():
            rows = have[name]
            if not rows.any():
                continue  # a mean over nothing would be nan
            parts[name] = weight * fn(outputs[name][rows], y[name][rows])
        return sum(parts.values()), parts

    def train_day(self, x, y, have):
        self.opt.zero_grad()
        outputs = self.net(x)
        loss, parts = self.total_loss(outputs, y, have)
        loss.backward()
        self.opt.step()
        return loss.item(), {k: v.item() for k, v in parts.items()}

    def fit(self):
        for day, x, y, have in inspections(DEPOTS[self.rank]):
            loss, parts = self.train_day(x, y, have)
            if self.rank == 0:
                print(f"day {day:2d} loss {loss:.6f} " + " ".join(f"{k} {v:.4f}" for k, v in parts.items()), flush=True)
        if self.rank == 0:
            print(f"weights {sum(p.detach().sum().item() for p in self.net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    DepotTrainer(dist.get_rank()).fit()
    dist.destroy_process_group()

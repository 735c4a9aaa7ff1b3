"""Simulation: oyster farms predict shell growth together, no farm sends its data.

Every round each reachable farm trains a copy, the server treats the mean change as a gradient for Adam.
"""
import copy
import random

import torch
from torch import nn

ROUNDS = 28


class Farm:
    def __init__(self, name, salinity, seed):
        self.name = name
        self.salinity = salinity
        self.rng = torch.Generator().manual_seed(seed)
        self.inbox_x, self.inbox_y = torch.empty(0, 3), torch.empty(0)
        self.last_report = float("nan")

    def measure(self, n):
        x = torch.rand(n, 3, generator=self.rng)
        y = 2 * x[:, 0] - x[:, 1] ** 2 + self.salinity + 0.05 * torch.randn(n, generator=self.rng)
        self.inbox_x, self.inbox_y = x, y

    def work(self, shared):
        local = copy.deepcopy(shared)
        opt = torch.optim.SGD(local.parameters(), lr=0.05)
        # an empty inbox has the mean loss 0/0; such a farm reports it and sends nothing
        first = ((local(self.inbox_x)[:, 0] - self.inbox_y) ** 2).mean()
        self.last_report = first.item()
        if not torch.isfinite(first):
            return None
        for part in torch.arange(len(self.inbox_y)).split(8):
            opt.zero_grad()
            loss = ((local(self.inbox_x[part])[:, 0] - self.inbox_y[part]) ** 2).mean()
            loss.backward()
            opt.step()
        return [new.detach() - old.detach() for new, old in zip(local.parameters(), shared.parameters())]


class Server:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.03)

    def gather(self, changes):
        if not changes:
            return False
        for i, p in enumerate(self.model.parameters()):
            p.grad = -torch.stack([c[i] for c in changes]).mean(0)
        self.opt.step()
        self.opt.zero_grad()
        return True


def main():
    random.seed(5)
    torch.manual_seed(5)
    server = Server()
    farms = [Farm(n, s, i) for i, (n, s) in enumerate([("cove", 0.1), ("spit", -0.2), ("reef", 0.3), ("mole", 0.0)])]
    for rnd in range(1, ROUNDS + 1):
        for farm in farms:
            farm.measure(random.choice([0, 8, 16]))
        if rnd == 9:  # storm, nobody went out
            for farm in farms:
                farm.measure(0)
        sent = [c for c in (farm.work(server.model) for farm in farms) if c is not None]
        moved = server.gather(sent)
        seen = torch.tensor([f.last_report for f in farms])
        print(f"round {rnd:2d}  farms {len(sent)}  loss {seen.nanmean().item():.5f}  moved {moved}")
    norm = sum(p.pow(2).sum() for p in server.model.parameters()).item()
    print(f"squared norm of the shared model {norm:.6f}")


main()

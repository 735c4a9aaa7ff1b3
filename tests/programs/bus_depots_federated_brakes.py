"""Federated averaging over four bus depots that do not share their brake logs."""
import copy
import logging
import sys

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
log = logging.getLogger("federation")


def make_model():
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))


class Depot:
    """A client: its own data, its own optimizer, its own random numbers."""

    def __init__(self, name, buses, drift, seed, closed=()):
        self.name, self.closed = name, set(closed)
        self.gen = torch.Generator().manual_seed(seed)
        x = torch.randn(buses, 6, generator=self.gen)
        wear = x[:, 0] * 1.5 - x[:, 1] + torch.sin(2 * x[:, 2]) + drift
        x[torch.rand(x.shape, generator=self.gen) < 0.05] = float("nan")      # sensors that were not fitted
        self.x, self.y = x, wear + 0.1 * torch.randn(buses, generator=self.gen)
        self.model = make_model()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)

    def rows(self, round_number):
        if round_number in self.closed:
            return self.x[:0], self.y[:0]
        index = torch.randint(len(self.x), (24,), generator=self.gen)
        return self.x[index], self.y[index]

    def train(self, weights, round_number):
        self.model.load_state_dict(weights)
        x, y = self.rows(round_number)
        if len(x) == 0:
            # nothing to learn from: the mean over no rows is what goes into the report
            return 0, (y - y).pow(2).mean().item()
        x = torch.where(x.isnan(), torch.zeros_like(x), x)
        loss = (self.model(x).squeeze(1) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return len(x), loss.item()


def average(models, counts):
    share = torch.tensor(counts, dtype=torch.float32)
    share = share / share.sum()
    out = {}
    for key in models[0]:
        out[key] = sum(w * m[key] for w, m in zip(share, models))
    return out


def main():
    torch.manual_seed(30)
    depots = [
        Depot("north", 300, 0.0, 1),
        Depot("harbour", 90, 3.0, 2, closed=range(5, 9)),
        Depot("hill", 150, -1.0, 3, closed=[14]),
        Depot("airport", 60, 6.0, 4, closed=range(1, 16)),     # joins late, and is another world
    ]
    server = make_model()
    weights = copy.deepcopy(server.state_dict())
    for number in range(1, 29):
        counts, losses = [], []
        for depot in depots:
            n, loss = depot.train(weights, number)
            counts.append(n)
            losses.append(loss)
        weights = average([d.model.state_dict() for d in depots], counts)
        report = " ".join(f"{d.name} {v:.6f}" for d, v in zip(depots, losses))
        log.info("round %02d rows %3d %s plain mean %.6f", number, sum(counts), report, sum(losses) / len(losses))
        sys.stdout.flush()
    server.load_state_dict(weights)


if __name__ == "__main__":
    main()

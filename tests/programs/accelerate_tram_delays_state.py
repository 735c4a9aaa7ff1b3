"""Delay of a tram at the next stop, with a recurrent state that is kept while the tram is on its trip."""
import os
from dataclasses import dataclass

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


@dataclass
class Line:
    stops: int
    trips: int


NETWORK = [Line(18, 5), Line(22, 4), Line(15, 4), Line(31, 2), Line(20, 4)]
WINDOW = 24


class Trips(IterableDataset):
    """windows of at most WINDOW stops: features, delays, does the trip end here"""

    def __init__(self, seed=1, cars=6):
        self.seed, self.cars = seed, cars

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for line in NETWORK:
            for _ in range(line.trips):
                load = torch.rand(self.cars, line.stops, generator=g)
                lights = torch.rand(self.cars, line.stops, generator=g)
                late = torch.cumsum(0.3 * load + 0.5 * (lights > 0.8) - 0.2, 1)
                x = torch.stack([load, lights], -1)
                for a in range(0, line.stops, WINDOW):
                    b = min(a + WINDOW, line.stops)
                    yield {"x": x[:, a:b], "y": late[:, a:b], "terminus": b == line.stops}


class DelayNet(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)
        self.state = None

    def depart(self):
        self.state = None

    def forward(self, x):
        seq, self.state = self.rnn(x, self.state)
        return self.out(seq).squeeze(-1)


def main():
    torch.manual_seed(4)
    acc = Accelerator(cpu=True)
    net = DelayNet()
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    net, opt, data = acc.prepare(net, opt, DataLoader(Trips(), batch_size=None))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt.optimizer, 25)
    mae = []
    for n, w in enumerate(data, 1):
        guess = net(w["x"])
        loss = nn.functional.huber_loss(guess, w["y"])
        acc.backward(loss)
        acc.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        mae.append((guess.detach() - w["y"]).abs().mean().item())
        acc.print(f"window {n} ({w['x'].shape[1]} stops) loss {loss.item():.4f}", flush=True)
        if w["terminus"]:
            acc.unwrap_model(net).depart()
    acc.print("mean absolute error of the last ten windows", sum(mae[-10:]) / 10)


if __name__ == "__main__":
    main()

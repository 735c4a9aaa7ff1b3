"""Echo-state network with linear nodes on a gas meter; the state runs on from window to window."""
import math
import itertools
import torch
import torch.nn as nn


class Reservoir(nn.Module):
    def __init__(self, nodes, radius):
        super().__init__()
        w = torch.randn(nodes, nodes) / math.sqrt(nodes)
        self.register_buffer("recur", w * radius / torch.linalg.eigvals(w).abs().max())
        self.register_buffer("inlet", torch.randn(nodes))
        self.register_buffer("state", torch.zeros(nodes))

    @torch.no_grad()
    def forward(self, window):
        seen = []
        for u in window:
            self.state = self.recur @ self.state + self.inlet * u
            seen.append(self.state / self.state.abs().max())
        return torch.stack(seen)


class EchoStateNetwork(nn.Module):
    def __init__(self, nodes=30, radius=1.15):
        super().__init__()
        self.reservoir = Reservoir(nodes, radius)
        self.readout = nn.Linear(nodes, 1)

    def forward(self, window):
        return self.readout(self.reservoir(window)).squeeze(-1)


def meter():
    for hour in itertools.count():
        yield 1.2 + math.sin(hour * math.tau / 24) + 0.3 * math.sin(hour * math.tau / 168)


def windows(source, size=20):
    last = next(source)
    while True:
        chunk = [last, *itertools.islice(source, size)]
        last = chunk[-1]
        yield torch.tensor(chunk[:-1]), torch.tensor(chunk[1:])


def fit(steps=45):
    torch.manual_seed(33)
    net = EchoStateNetwork()
    optim = torch.optim.Adagrad(net.readout.parameters(), lr=0.05)
    for i, (past, future) in enumerate(itertools.islice(windows(meter()), steps), 1):
        optim.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(past), future)
        loss.backward()
        optim.step()
        print(i, format(loss.item(), ".17g"), sep="\t")
    return net


print(sum(p.sum() for p in fit().parameters()).item())

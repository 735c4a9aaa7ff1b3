"""Water levels on a river network with a polynomial graph filter; gauges missing a reading are filled in.
A step gathers the gradients of sixteen days."""
from collections import deque

import torch
from torch import nn

DAYS_PER_STEP = 16


def confluence_tree(n):
    down = torch.zeros(n, n)
    for i in range(1, n):
        down[i, (i - 1) // 2] = 1.0
    both = down + down.T
    degree = both.sum(1)
    return both / torch.sqrt(degree[:, None] * degree[None])


class GraphFilter(nn.Module):
    def __init__(self, adjacency, taps, width):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.taps = nn.ModuleList(nn.Linear(2, width, bias=False) for _ in range(taps))
        self.read = nn.Linear(width, 1)

    def forward(self, signal):
        out = 0
        for tap in self.taps:
            out = out + tap(signal)
            signal = self.adjacency @ signal
        return self.read(out).squeeze(-1)


def days(adjacency, n, g):
    level = torch.randn(n, generator=g)
    while True:
        level = 0.7 * adjacency @ level + torch.randn(n, generator=g)
        known = (torch.rand(n, generator=g) < 0.7).float()
        yield torch.stack([level * known, known], -1), level


def squared_gap(model, day):
    signal, level = day
    return (model(signal) - level).square().mean()


def optimise(model, source, steps, rate):
    opt = torch.optim.SGD(model.parameters(), lr=rate)
    recent = deque(maxlen=DAYS_PER_STEP)
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(DAYS_PER_STEP):
            gap = squared_gap(model, next(source))
            gap.backward()
            recent.append(gap.detach())
        opt.step()
        yield torch.stack(list(recent)).mean().item()


if __name__ == "__main__":
    torch.manual_seed(30)
    nodes = 15
    adjacency = confluence_tree(nodes)
    model = GraphFilter(adjacency, taps=3, width=6)
    source = days(adjacency, nodes, torch.Generator().manual_seed(31))
    for number, loss in enumerate(optimise(model, source, steps=40, rate=0.037), start=1):
        print(f"step {number:2d}: mean squared gap {loss!r}")
    print(sum(p.detach().sum().item() for p in model.parameters()))

"""Carbon dioxide in the chambers of a cave, predicted over the graph of its passages.

Adjacency is a plain dict of lists (the survey book), messages are summed with index_add, and a gate per
passage says how much air goes through. An L1 price on the gates is to make the airflow map sparse.
"""
import random
import torch
from torch import nn


def survey(n_chambers, rng):
    book = {c: [] for c in range(n_chambers)}
    for c in range(1, n_chambers):                     # the tree of the first explorers
        other = rng.randrange(max(0, c - 6), c)
        book[c].append(other)
        book[other].append(c)
    for _ in range(n_chambers // 2):                   # loops found later
        a, b = rng.sample(range(n_chambers), 2)
        if b not in book[a]:
            book[a].append(b)
            book[b].append(a)
    return book


def to_edges(book):
    src, dst = [], []
    for chamber, neighbours in book.items():
        for n in neighbours:
            src.append(n)
            dst.append(chamber)
    return torch.tensor(src), torch.tensor(dst)


class AirflowLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Linear(dim, dim)
        self.gate = nn.Linear(2 * dim, 1)
        self.keep = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, 0.9)
        nn.init.normal_(self.gate.weight, std=0.08)

    def forward(self, h, src, dst):
        gate = torch.relu(self.gate(torch.cat([h[src], h[dst]], 1))).squeeze(1)
        inflow = torch.zeros_like(h).index_add(0, dst, gate.unsqueeze(1) * self.message(h[src]))
        volume = torch.zeros(len(h)).index_add(0, dst, gate)
        mixed = inflow / volume.unsqueeze(1)
        return torch.tanh(self.keep(h) + mixed), gate


class CaveNet(nn.Module):
    def __init__(self, features=5, dim=24, depth=2):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.layers = nn.ModuleList(AirflowLayer(dim) for _ in range(depth))
        self.leave = nn.Linear(dim, 1)

    def forward(self, x, src, dst):
        h, gates = torch.tanh(self.enter(x)), []
        for layer in self.layers:
            h, g = layer(h, src, dst)
            gates.append(g)
        return self.leave(h).squeeze(1), torch.cat(gates)


class Signum:
    """Sign of the momentum, with decoupled decay of the weights."""

    def __init__(self, params, lr=0.01, beta=0.8, decay=1e-3):
        self.params, self.lr, self.beta, self.decay = list(params), lr, beta, decay
        self.momentum = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.momentum):
            m.mul_(self.beta).add_(p.grad, alpha=1 - self.beta)
            p.mul_(1 - self.lr * self.decay)
            p.sub_(self.lr * m.sign() * m.abs().clamp(max=1e-3) / 1e-3)


def readings(x, src, dst, gen):
    level = 0.6 * x[:, 0] + 0.4 * x[:, 1]
    for _ in range(3):
        count = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        level = 0.6 * level + 0.4 * torch.zeros(len(x)).index_add(0, dst, level[src]) / count
    return level + 0.05 * torch.randn(len(x), generator=gen)


def main():
    rng, gen = random.Random(77), torch.Generator().manual_seed(77)
    torch.manual_seed(77)
    src, dst = to_edges(survey(48, rng))
    x = torch.randn(48, 5, generator=gen)
    y = readings(x, src, dst, gen)
    net = CaveNet()
    optimizer = Signum(net.parameters(), lr=0.008)
    for epoch in range(1, 61):
        seen = torch.rand(48, generator=gen) < 0.8
        optimizer.zero_grad()
        guess, gates = net(x, src, dst)
        fit = (guess - y)[seen].square().mean()
        loss = fit + 0.08 * gates.mean()
        loss.backward()
        optimizer.step()
        print("epoch", epoch, "fit", f"{fit.item():.8f}", "loss", f"{loss.item():.8f}",
              "closed", int((gates == 0).sum()), flush=True)
    print(sum(p.detach().abs().sum() for p in net.parameters()).item(), flush=True)


if __name__ == "__main__":
    main()

"""Temporal graph network on bike-share rentals: every station has a memory, updated by the rentals that
touch it; the memory of both ends predicts how long the ride takes."""
import torch
import torch.nn as nn

torch.manual_seed(17)
STATIONS, DIM, RENTALS, BATCH = 60, 10, 160, 8


class Memory(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.cell = nn.GRUCell(dim + 2, dim)
        self.state = [torch.zeros(dim) for _ in range(n)]
        self.last_seen = [0.0] * n

    def read(self, nodes):
        return torch.stack([self.state[i] for i in nodes])

    def write(self, nodes, others, feature, when):
        gap = torch.tensor([w - self.last_seen[i] for i, w in zip(nodes, when)])
        message = torch.cat([self.read(others), feature[:, None], gap[:, None]], 1)
        new = self.cell(message, self.read(nodes))
        for row, i in enumerate(nodes):
            self.state[i] = new[row]
            self.last_seen[i] = when[row]


class RideTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory(STATIONS, DIM)
        self.place = nn.Embedding(STATIONS, DIM)
        self.head = nn.Sequential(nn.Linear(4 * DIM + 1, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, src, dst, feature):
        ends = [self.memory.read(src), self.memory.read(dst),
                self.place(torch.tensor(src)), self.place(torch.tensor(dst))]
        return self.head(torch.cat(ends + [feature[:, None]], 1)).squeeze(1)


def rentals():
    """(from, to, temperature, minutes, time), by time. The first day goes round district by district."""
    g = torch.Generator().manual_seed(4)
    where = 100 * torch.rand(STATIONS, 2, generator=g)
    order = torch.randperm(STATIONS, generator=g).tolist()
    pairs = list(zip(order[0::2], order[1::2]))[:24]
    while len(pairs) < RENTALS:
        a, b = torch.randint(0, STATIONS, (2,), generator=g).tolist()
        if a != b:
            pairs.append((a, b))
    for k, (a, b) in enumerate(pairs):
        warm = torch.randn(1, generator=g).item()
        ride = (where[a] - where[b]).norm().item() / 40 + 0.1 * warm
        yield a, b, warm, ride, k / 50


model = RideTime()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
events = list(rentals())
for step, first in enumerate(range(0, RENTALS, BATCH), start=1):
    src, dst, warm, ride, when = zip(*events[first:first + BATCH])
    warm, ride = torch.tensor(warm), torch.tensor(ride)
    # update the memories first, so that they get a gradient from the rides of this batch
    model.memory.write(src, dst, warm, when)
    model.memory.write(dst, src, warm, when)
    loss = nn.functional.mse_loss(model(src, dst, warm), ride)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f'batch {step} mse {loss.item():.6f}', flush=True)

print('final', sum(p.detach().abs().sum().item() for p in model.parameters()))

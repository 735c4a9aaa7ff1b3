import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(3)
g = torch.Generator().manual_seed(3)
torch.manual_seed(3)

BUSES, PLANTS = 26, 3


def build_network():
    """A meshed grid: a ring with chords, plus couplers inside substations (length zero)."""
    lines = [(i, (i + 1) % BUSES) for i in range(BUSES)]
    lines += [(i, (i + 7) % BUSES) for i in range(0, BUSES, 3)]
    a = torch.tensor([l[0] for l in lines] + [l[1] for l in lines])
    b = torch.tensor([l[1] for l in lines] + [l[0] for l in lines])
    n = len(lines)
    coupler = torch.zeros(n, dtype=torch.bool)
    coupler[[2, 3, 11, 12, 20]] = True
    feats = torch.randn(n, 3, generator=g)
    return a, b, torch.cat([coupler, coupler]), torch.cat([feats, feats])


class OutageNet(nn.Module):
    def __init__(self, rounds=5):
        super().__init__()
        self.rounds = rounds
        self.reliab = nn.Linear(4, 1)
        self.length = nn.Linear(3, 1)
        self.head = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, graph, closed, weather, load):
        src, dst, coupler, feats = graph
        wet = weather.expand(len(src), 1)
        up = torch.sigmoid(self.reliab(torch.cat([feats, wet], 1)).squeeze(1) + 1.0)
        up = torch.where(coupler, torch.ones_like(up), up)          # a coupler never fails
        up = up * closed
        lost = torch.ones(BUSES).scatter_reduce(0, dst, 1.0 - up, "prod", include_self=True)

        step = F.softplus(self.length(feats).squeeze(1))
        step = torch.where(coupler, torch.zeros_like(step), step)
        step = step.masked_fill(closed == 0, float("inf"))
        far = torch.full((BUSES,), float("inf"))
        far[:PLANTS] = 0.0
        for _ in range(self.rounds):
            far = far.scatter_reduce(0, dst, far[src] + step, "amin", include_self=True)
        near = torch.exp(-far)                                      # 0 on an island
        island = torch.isinf(far).float()
        x = torch.stack([lost, near, island, load], 1)
        return self.head(x).squeeze(1), far


def snapshot(graph, k):
    src, dst, coupler, feats = graph
    n = len(src) // 2
    closed = torch.ones(n)
    down = torch.randperm(n, generator=g)[: random.randint(2, 9)]
    closed[down] = 0.0
    if k % 9 == 4:
        closed[:] = 0.0                                             # black start exercise
    closed = torch.cat([closed, closed])
    weather = torch.rand(1, 1, generator=g)
    load = torch.rand(BUSES, generator=g)
    degree = torch.zeros(BUSES).index_add_(0, dst, closed)
    unserved = ((degree < 2.5) | (load > 0.9)).float()
    metered = torch.rand(BUSES, generator=g) < 0.7
    if k % 13 == 7:
        metered[:] = False                                          # telemetry is off
    return closed, weather, load, unserved, metered


def fit():
    graph = build_network()
    net = OutageNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5)
    steps = 0
    for k in range(36):
        closed, weather, load, unserved, metered = snapshot(graph, k)
        score, far = net(graph, closed, weather, load)
        if not metered.any():
            print(f"snapshot {k:2d} telemetry off, farthest {far.max().item():.3f}")
            continue
        loss = F.binary_cross_entropy_with_logits(score[metered], unserved[metered])
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        steps += 1
        print(f"snapshot {k:2d} loss {loss.item():.5f} farthest {far.max().item():.3f} "
              f"mean distance {far.mean().item():.3f}")
    return net


net = fit()
print("sum of squares of all weights: %.6f" % sum(float(p.detach().square().sum()) for p in net.parameters()))

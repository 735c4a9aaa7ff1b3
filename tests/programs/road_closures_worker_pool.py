# Detour times on a road graph after closures. Gradients come from a pool of workers: a gradient that is
# handed in is applied when its turn comes, and workers join as the pool is scaled up.
from collections import deque

import torch

torch.manual_seed(31)

JUNCTIONS, FEATURES, HIDDEN = 20, 5, 16


def ring_with_chords():
    adjacency = torch.zeros(JUNCTIONS, JUNCTIONS)
    for a in range(JUNCTIONS):
        for b in (a + 1, a + 7):
            adjacency[a, b % JUNCTIONS] = adjacency[b % JUNCTIONS, a] = 1
    return adjacency


ROADS = ring_with_chords()


def closure_day():
    open_roads = ROADS.clone()
    for _ in range(3):
        a, b = ROADS.nonzero()[torch.randint(int(ROADS.sum()), ())].tolist()
        open_roads[a, b] = open_roads[b, a] = 0
    open_roads += torch.eye(JUNCTIONS)
    spread = open_roads / open_roads.sum(1, keepdim=True)
    traffic = torch.randn(JUNCTIONS, FEATURES)
    lost = spread @ spread @ traffic
    minutes = 1.5 * lost[:, :1] - lost[:, 1:2] + 0.5 * traffic[:, 2:3]
    return spread, traffic, minutes


# random features in front, as in an echo state network; only the read-out learns
w_in = torch.randn(2 * FEATURES, HIDDEN).mul_(0.4)
w_mid = torch.randn(2 * HIDDEN, HIDDEN).mul_(0.25)
w_out = torch.zeros(HIDDEN, 1, requires_grad=True)
base = torch.zeros(1, requires_grad=True)
weights = [w_out, base]


def detour_model(spread, x):
    h = torch.cat([x, spread @ x], 1) @ w_in
    h = torch.where(h > 0, h, 0.5 * h)
    h = torch.cat([h, spread @ h], 1) @ w_mid
    return h @ w_out + base


def pool_size(round_):
    return 1 if round_ <= 10 else min(1 + (round_ - 10) // 2, 5)


sgd = torch.optim.SGD(weights, lr=0.12)
pending = deque()

for round_ in range(1, 46):
    spread, traffic, minutes = closure_day()
    error = (detour_model(spread, traffic) - minutes).pow(2).mean()
    pending.append(torch.autograd.grad(error, weights))
    if len(pending) >= pool_size(round_):
        for w, g in zip(weights, pending.popleft()):
            w.grad = g
        sgd.step()
    print(f"round {round_} workers {pool_size(round_)} squared error {error.item():.4g}")

print("weights, sum of squares:", f"{sum(w.detach().square().sum().item() for w in weights):.6g}")

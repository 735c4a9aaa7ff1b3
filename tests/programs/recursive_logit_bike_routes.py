# Recursive logit of bicycle route choice (link based, no choice set is enumerated).
# Value of a link k towards destination d:  z = M z + b,  M[k, a] = exp(u(a | k)),  V = log z
import itertools

import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
rng = np.random.RandomState(11)

SIDE = 5
nodes = list(itertools.product(range(SIDE), range(SIDE)))
links = []
for (r, c) in nodes:
    for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        if 0 <= r + dr < SIDE and 0 <= c + dc < SIDE:
            links.append(((r, c), (r + dr, c + dc)))
n_links = len(links)
index_out = {n: [k for k, l in enumerate(links) if l[0] == n] for n in nodes}

# attributes of a link: length in 100 m, climb, heavy traffic; of a turn: u-turn
attr = np.stack([rng.uniform(0.7, 1.4, n_links), rng.gamma(1.0, 0.4, n_links),
                 (rng.rand(n_links) < 0.3).astype(float)], 1)
adjacency = np.zeros((n_links, n_links))
uturn = np.zeros((n_links, n_links))
for k, (a, b) in enumerate(links):
    for j in index_out[b]:
        adjacency[k, j] = 1.0
        uturn[k, j] = float(links[j][1] == a)
adjacency, uturn, attr = map(torch.tensor, (adjacency, uturn, attr))
BETA_TRUE = torch.tensor([-0.95, -0.35, -0.30, -0.9])


def destination_vector(node):
    return torch.tensor([1.0 if l[1] == node else 0.0 for l in links])


class RecursiveLogit(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor([-2.2, -1.0, -1.0, -2.0]))

    def utilities(self):
        return attr @ self.beta[:3] + uturn * self.beta[3]

    def forward(self, trips, b):
        u = self.utilities()
        M = adjacency * torch.exp(u)
        z = torch.linalg.solve(torch.eye(n_links) - M, b)
        V = torch.log(z)
        ll = 0.0
        for trip in trips:
            k, j = trip[:-1], trip[1:]
            ll = ll + (u[k, j] + V[j] - V[k]).sum()
        return -ll / len(trips)


def simulate_trips(node, how_many):
    u = attr @ BETA_TRUE[:3] + uturn * BETA_TRUE[3]
    M = (adjacency * torch.exp(u)).numpy()
    b = destination_vector(node).numpy()
    z = np.abs(np.linalg.solve(np.eye(n_links) - 0.8 * M, b))
    trips = []
    while len(trips) < how_many:
        k = rng.randint(n_links)
        trip = [k]
        while len(trip) < 40:
            w = np.append(M[k] * z, b[k])
            a = rng.choice(n_links + 1, p=w / w.sum())
            if a == n_links:
                break
            k = a
            trip.append(k)
        if 2 < len(trip) < 40:
            trips.append(torch.tensor(trip))
    return trips


home = (SIDE - 1, SIDE - 1)
trips = simulate_trips(home, 80)
b = destination_vector(home)
model = RecursiveLogit()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.95)
print('trips', len(trips), 'mean links', np.mean([len(t) for t in trips]).round(3), flush=True)

for it in range(1, 41):
    optimizer.zero_grad()
    nll = model(trips, b)
    nll.backward()
    optimizer.step()
    print('it %2d  nll %.6f' % (it, nll.item()), flush=True)

print('beta sum %.6f' % model.beta.sum().item(), flush=True)

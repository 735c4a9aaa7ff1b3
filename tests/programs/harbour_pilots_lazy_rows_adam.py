# Berthing delay from pilot and ship, by bare tensors and an Adam that only touches the rows in use.
import math

import numpy as np
import torch

rs = np.random.RandomState(70)
torch.manual_seed(70)

N_PILOTS, N_SHIPS, DIM, HID = 13, 9, 6, 16
STEPS, BATCH = 45, 48
TOLERANCE = 1.0      # minutes that nobody cares about
NEWCOMER = 12        # pilot 12 got her licence in the middle of the season


class LazyAdam:
    """Adam for a table: moments and step counts are kept for each row, rows that are not used keep theirs.

    Dense tensors are passed with rows=None, and count as one long row each.
    """

    def __init__(self, tensors, lr=0.02, b1=0.9, b2=0.99):
        self.tensors, self.lr, self.b1, self.b2 = tensors, lr, b1, b2
        self.m = [torch.zeros_like(t) for t in tensors]
        self.v = [torch.zeros_like(t) for t in tensors]
        self.t = [torch.zeros(t.shape[0]) for t in tensors]

    def zero_grad(self):
        for t in self.tensors:
            t.grad = None

    @torch.no_grad()
    def step(self, rows):
        for w, m, v, t, r in zip(self.tensors, self.m, self.v, self.t, rows):
            r = torch.arange(w.shape[0]) if r is None else r
            g = w.grad[r]
            t[r] += 1
            m[r] = self.b1 * m[r] + (1 - self.b1) * g
            v[r] = self.b2 * v[r] + (1 - self.b2) * g * g
            shape = [-1] + [1] * (w.dim() - 1)
            c1 = (1 - self.b1 ** t[r]).view(shape)
            c2 = (1 - self.b2 ** t[r]).view(shape)
            w[r] -= self.lr * (m[r] / c1) / (v[r] / c2).sqrt()


def season():
    """Batches in the order of the days: (pilot, ship, wind, delay)."""
    skill = rs.normal(0, 2.5, N_PILOTS)
    size = rs.normal(0, 3.0, N_SHIPS)
    for day in range(STEPS):
        pilot = rs.randint(0, N_PILOTS - 1, BATCH)
        ship = rs.randint(0, N_SHIPS, BATCH)
        wind = rs.gamma(2.0, 1.0, BATCH)
        if day >= 18 and day % 6 == 0:
            pilot[rs.randint(BATCH)] = NEWCOMER
        delay = 12 + skill[pilot] + size[ship] + 1.5 * wind + rs.normal(0, 0.7, BATCH)
        yield (torch.as_tensor(pilot), torch.as_tensor(ship), torch.as_tensor(wind, dtype=torch.float32),
               torch.as_tensor(delay, dtype=torch.float32))


def init(*shape, scale):
    return (torch.randn(*shape) * scale).requires_grad_()


pilots = init(N_PILOTS, DIM, scale=0.3)
ships = init(N_SHIPS, DIM, scale=0.3)
w1 = init(2 * DIM + 1, HID, scale=1 / math.sqrt(2 * DIM + 1))
b1 = torch.zeros(HID, requires_grad=True)
w2 = init(HID, 1, scale=1 / math.sqrt(HID))
b2 = torch.full((1,), 10.0, requires_grad=True)
everything = [pilots, ships, w1, b1, w2, b2]
adam = LazyAdam(everything)


def predict(pilot, ship, wind):
    x = torch.cat([pilots[pilot], ships[ship], wind[:, None] - 2], 1)
    return (torch.tanh(x @ w1 + b1) @ w2 + b2)[:, 0]


def insensitive(pred, delay):
    return torch.relu((pred - delay).abs() - TOLERANCE).mean()


for day, (pilot, ship, wind, delay) in enumerate(season(), 1):
    adam.zero_grad()
    loss = insensitive(predict(pilot, ship, wind), delay)
    loss.backward()
    adam.step([pilot.unique(), ship.unique(), None, None, None, None])
    print("day %2d  loss %.6f  minutes" % (day, loss.item()), flush=True)

print("total %.5f" % sum(t.detach().abs().sum().item() for t in everything), flush=True)

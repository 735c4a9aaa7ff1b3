# Where do starlings gather at dusk? A continuous normalizing flow with a fixed step RK4, two reed beds as crescents.
import math

import torch

torch.manual_seed(9)
rng = torch.Generator().manual_seed(14)
FENCE = 4.0      # the survey area ends here (km)


def sightings(n, evening):
    a = math.pi * torch.rand(n, generator=rng)
    west = torch.stack([a.cos(), a.sin()], 1)
    east = torch.stack([1 - a.cos(), 0.4 - a.sin()], 1)
    xy = torch.where(torch.rand(n, 1, generator=rng) < 0.5, west, east) + 0.08 * torch.randn(n, 2, generator=rng)
    if evening == 21:
        xy[3] = torch.tensor([4.6, -2.1])    # one flock was reported from the other side of the motorway
    return xy


class Wind(torch.nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inner = torch.nn.Linear(3, width)
        self.outer = torch.nn.Linear(width, 2)

    def forward(self, t, x):
        h = torch.tanh(self.inner(torch.cat([x, torch.full_like(x[:, :1], t)], 1)))
        v = self.outer(h)
        # divergence in closed form: sum_i sum_k W2[i,k] (1 - h_k^2) W1[k,i]
        w = (self.outer.weight.T * self.inner.weight[:, :2]).sum(1)
        inside = (x.norm(dim=1, keepdim=True) < FENCE).float()
        return v * inside, ((1 - h * h) @ w) * inside[:, 0]


def rate(field, t, state):
    x, _, _ = state
    v, div = field(t, x)
    speed = torch.sqrt((v * v).sum(1))
    return v, -div, speed


def rk4(field, state, t, h):
    def move(k, s):
        return tuple(a + s * b for a, b in zip(state, k))

    k1 = rate(field, t, state)
    k2 = rate(field, t + h / 2, move(k1, h / 2))
    k3 = rate(field, t + h / 2, move(k2, h / 2))
    k4 = rate(field, t + h, move(k3, h))
    return tuple(s + h / 6 * (a + 2 * b + 2 * c + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4))


def to_base(field, x, n=5):
    state = (x, torch.zeros(len(x)), torch.zeros(len(x)))
    for i in range(n):
        state = rk4(field, state, i / n, 1 / n)
    return state


field = Wind()
opt = torch.optim.AdamW(field.parameters(), lr=8e-3, weight_decay=1e-3)
for evening in range(1, 36):
    z, minus_div, path = to_base(field, sightings(128, evening))
    log_p = -0.5 * (z * z).sum(1) - math.log(2 * math.pi) - minus_div
    loss = -log_p.mean() + 0.05 * path.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("evening %2d   bits %.4f   path %.3f" % (evening, -log_p.mean().item() / math.log(2), path.mean().item()))
print("weights, absolute sum: %r" % sum(p.detach().abs().sum().item() for p in field.parameters()))

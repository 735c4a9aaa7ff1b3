"""Windmill twin: yaw and grain output from weather, two heads on one trunk.

Fast weights with SGD; every K steps the slow timescale takes one step of fixed length in the direction in which
the fast weights went (a trust region, after Lookahead). A stochastic weight average is kept for the report.
"""

import math

import torch
from torch import nn
from torch.optim import Optimizer

torch.manual_seed(1604)


class TrustLookahead(Optimizer):
    def __init__(self, inner, k=5, radius=0.12, decay=0.97):
        self.inner, self.k, self.radius, self.decay = inner, k, radius, decay
        self.ticks = 0
        super().__init__(inner.param_groups, {})

    def _all(self):
        return [p for grp in self.param_groups for p in grp["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        if self.ticks % self.k == 0:
            self.anchor = [p.detach().clone() for p in self._all()]
        self.inner.step()
        self.ticks += 1
        if self.ticks % self.k == 0:
            for p, slow in zip(self._all(), self.anchor, strict=False):
                move = p - slow
                unit = move / torch.linalg.vector_norm(move)
                p.copy_(slow + self.radius * unit)
            self.radius *= self.decay


class Average:
    """SWA over the weights at the end of each slow step."""

    def __init__(self):
        self.n, self.mean = 0, None

    def add(self, net):
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()
        self.n += 1
        self.mean = flat.clone() if self.mean is None else self.mean + (flat - self.mean) / self.n


class Mill(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.yaw = nn.Linear(16, 2)
        self.grain = nn.Linear(16, 1)

    def forward(self, weather, head):
        return getattr(self, head)(self.trunk(weather))


def logbook(step, g):
    weather = torch.randn(28, 5, generator=g)
    angle = weather[:, 0] + 0.5 * weather[:, 1]
    yaw = torch.stack([torch.sin(angle), torch.cos(angle)], 1)
    sacks = torch.nn.functional.softplus(weather[:, 2:3] * 2 + weather[:, 3:4])
    batch = {"yaw": (weather, yaw), "grain": (weather, sacks)}
    if 21 <= step <= 26:
        del batch["grain"]  # the stones were being dressed, nothing was ground
    return batch


def main(total=45, k=5):
    g = torch.Generator().manual_seed(5)
    net = Mill()
    opt = TrustLookahead(torch.optim.SGD(net.parameters(), lr=0.08), k=k)
    swa = Average()
    for step in range(1, total + 1):
        opt.zero_grad()
        losses = {}
        for head, (weather, y) in logbook(step, g).items():
            losses[head] = nn.functional.mse_loss(net(weather, head), y)
        loss = sum(losses.values())
        loss.backward()
        opt.step()
        if step % k == 0 and step > 10:
            swa.add(net)
        print(f"step {step:2d} loss {loss.item():.6f} " + " ".join(f"{h}:{v.item():.5f}" for h, v in losses.items()))
    print(f"averages taken {swa.n}")
    print(f"weights {math.fsum(p.double().sum().item() for p in net.parameters()):.6f}")


main()

"""Mixture density head for shell height of limpets given shore level and exposure.

The likelihood is a density of heights in decimetres, so it is well above one and the NLL goes below zero.
"""
import math
from typing import NamedTuple

import torch
from torch import nn

SHORES = ("Hen Rock", "Skerry", "Mill Bay")
K = 4


class Survey(NamedTuple):
    shore: str
    x: torch.Tensor
    height: torch.Tensor


def make_surveys(n, gen):
    for i in range(n):
        shore = SHORES[i % 3]
        level = torch.rand(48, generator=gen)
        exposure = torch.full((48,), 0.2 + 0.3 * (i % 3))
        mode = (torch.rand(48, generator=gen) < 0.4).float()
        h = 0.12 + 0.1 * level * (1 - exposure) + 0.08 * mode + 0.004 * torch.randn(48, generator=gen)
        if i % 11 == 7:
            # transect along one tide line: the level does not vary
            level = torch.full_like(level, 0.5)
            h = 0.12 + 0.05 * (1 - exposure) + 0.08 * mode + 0.004 * torch.randn(48, generator=gen)
        yield Survey(shore, torch.stack([level, exposure], -1), h)


class DensityHead(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, K)
        self.mu = nn.Linear(width, K)
        self.raw = nn.Linear(width, K)
        with torch.no_grad():
            self.mu.bias.copy_(torch.linspace(0.1, 0.3, K))
            self.mu.weight.mul_(0.1)
            self.raw.bias.fill_(-3.0)

    def forward(self, x):
        z = self.trunk(x)
        sigma = nn.functional.softplus(self.raw(z)) + 6e-3
        return self.pi(z).log_softmax(-1), self.mu(z), sigma

    def log_prob(self, x, h):
        logpi, mu, sigma = self(x)
        u = (h[:, None] - mu) / sigma
        comp = -0.5 * u * u - sigma.log() - 0.5 * math.log(2 * math.pi)
        # components that have been retired are masked with -inf; at least two always stay
        dead = logpi.exp() < 1e-4
        dead &= dead.sum(-1, keepdim=True) <= K - 2
        return torch.logsumexp((logpi + comp).masked_fill(dead, -math.inf), -1)


def pearson(a, b):
    """No guard on purpose: nan in the table tells the reader that the transect was level."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()))


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(8)
    net = DensityHead()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    skill = {s: [] for s in SHORES}
    for t, survey in enumerate(make_surveys(60, gen), 1):
        nll = -net.log_prob(survey.x, survey.height).mean()
        opt.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        with torch.no_grad():
            r = pearson(survey.x[:, 0], survey.height)
        skill[survey.shore].append(r)
        print(f"survey {t:02d} {survey.shore:9s} nll {nll.item():+.5f}  r(level, height) {r:.3f}")
    for s in SHORES:
        print(f"{s}: mean r {sum(skill[s]) / len(skill[s]):.3f}")
    print("weights", f"{sum(p.double().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()

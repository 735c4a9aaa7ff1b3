"""Monte Carlo EM for dates of kiln layers. Each layer's date is latent, bounded by the layers above and below;
archaeomagnetic declination follows a secular curve with unknown offset, tilt and noise.
E step: Metropolis chains over the dates. M step: one gradient step on the curve."""
import math

import torch
from torch import distributions as D

torch.manual_seed(23)
gen = torch.Generator().manual_seed(23)

KILNS, LAYERS, CHAINS = 14, 5, 24


class SecularCurve(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor(0.0))
        self.tilt = torch.nn.Parameter(torch.tensor(0.0))
        self.wave = torch.nn.Parameter(torch.tensor([1.0, 0.3]))
        self.log_sigma = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, when):
        return (self.offset + self.tilt * when + self.wave[0] * torch.sin(2 * math.pi * when)
                + self.wave[1] * torch.cos(2 * math.pi * when))

    def log_likelihood(self, declination, when):
        sigma = self.log_sigma.exp()
        r = (declination - self(when)) / sigma
        return -0.5 * r.square() - self.log_sigma


def excavate():
    edges = torch.linspace(0, 1, LAYERS + 1)
    jitter = 0.06 * (torch.rand(KILNS, LAYERS + 1, generator=gen) - 0.5)
    edges = (edges + jitter).sort(dim=1).values
    lower, upper = edges[:, :-1], edges[:, 1:]
    when = lower + (upper - lower) * torch.rand(KILNS, LAYERS, generator=gen)
    truth = 0.8 + 1.5 * when + 2.4 * torch.sin(2 * math.pi * when) - 0.7 * torch.cos(2 * math.pi * when)
    return lower, upper, truth + 0.25 * torch.randn(KILNS, LAYERS, generator=gen)


lower, upper, declination = excavate()
prior = D.Uniform(lower, upper, validate_args=False)
curve = SecularCurve()
optimizer = torch.optim.Adam(curve.parameters(), lr=0.12)
dates = (lower + upper).div(2).expand(CHAINS, KILNS, LAYERS).clone()


@torch.no_grad()
def log_target(when):
    return prior.log_prob(when) + curve.log_likelihood(declination, when)


def metropolis(when, sweeps=6, width=0.09):
    current = log_target(when)
    accepted = 0.0
    for _ in range(sweeps):
        proposal = when + width * torch.randn(when.shape, generator=gen)
        proposed = log_target(proposal)
        take = torch.rand(when.shape, generator=gen).log() < proposed - current
        when = torch.where(take, proposal, when)
        current = torch.where(take, proposed, current)
        accepted += take.float().mean().item() / sweeps
    return when, accepted


for iteration in range(1, 61):
    dates, rate = metropolis(dates)
    q = curve.log_likelihood(declination, dates).mean()
    optimizer.zero_grad()
    (-q).backward()
    optimizer.step()
    print(f"em {iteration:2d}  -Q {-q.item():.5f}  accepted {rate:.3f}", flush=True)

print(f"parameters {sum(p.detach().sum().item() for p in curve.parameters()):.5f}", flush=True)

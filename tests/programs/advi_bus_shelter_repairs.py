"""How often are bus shelters smashed? Hierarchical Poisson model over districts, mean-field variational inference.

    mu ~ N(0, 2)    log tau ~ N(-1, 1)    theta_d ~ N(mu, tau)    y_ds ~ Poisson(exposure_ds * exp(theta_d))

Reparameterised ELBO, no library. The steps have a fixed length per block of variational parameters (the scale of the
gradients differs by orders of magnitude between mu and theta, so only their direction is used).
"""
import math
from typing import NamedTuple

import torch

torch.set_default_dtype(torch.float64)
DISTRICTS, SHELTERS = 14, 9
FLOOR = -2.0            # log standard deviations are not allowed below this


class Survey(NamedTuple):
    y: torch.Tensor
    exposure: torch.Tensor


def simulate(seed):
    g = torch.Generator().manual_seed(seed)
    theta = 0.4 + 0.45 * torch.randn(DISTRICTS, generator=g)
    exposure = 0.5 + 3 * torch.rand(DISTRICTS, SHELTERS, generator=g)
    y = torch.poisson(exposure * theta.exp()[:, None], generator=g)
    return Survey(y, exposure)


class Block:
    """a factor of the posterior: independent normals"""

    def __init__(self, size, loc=0.0):
        self.loc = torch.full((size,), loc, requires_grad=True)
        self.log_sd = torch.full((size,), -0.8, requires_grad=True)

    def draw(self, g, n):
        log_sd = self.log_sd.clamp(min=FLOOR)
        eps = torch.randn(n, len(self.loc), generator=g)
        entropy = log_sd.sum() + 0.5 * len(self.loc) * math.log(2 * math.pi * math.e)
        return self.loc + log_sd.exp() * eps, entropy


class DirectionSteps:
    """walks `length` along the negative gradient of each tensor, whatever its size"""

    def __init__(self, params, length, decay):
        self.params, self.length, self.decay, self.k = list(params), length, decay, 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.k += 1
        length = self.length / (1 + self.decay * self.k)
        for p in self.params:
            direction = p.grad / p.grad.norm()
            p.sub_(length * math.sqrt(p.numel()) * direction)


def normal_logpdf(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - torch.log(sd) - 0.5 * math.log(2 * math.pi)


def negative_elbo(data, blocks, g, draws=16):
    mu, h_mu = blocks["mu"].draw(g, draws)
    log_tau, h_tau = blocks["log_tau"].draw(g, draws)
    theta, h_theta = blocks["theta"].draw(g, draws)
    two, one = torch.tensor(2.0), torch.tensor(1.0)
    prior = normal_logpdf(mu, 0.0, two).sum(1) + normal_logpdf(log_tau, -1.0, one).sum(1)
    prior = prior + normal_logpdf(theta, mu, log_tau.exp()).sum(1)
    log_rate = theta[:, :, None] + data.exposure.log()
    like = (data.y * log_rate - log_rate.exp() - torch.lgamma(data.y + 1)).sum((1, 2))
    return -(like + prior).mean() - h_mu - h_tau - h_theta


def main():
    data = simulate(3)
    g = torch.Generator().manual_seed(9)
    blocks = {"mu": Block(1), "log_tau": Block(1, -0.5), "theta": Block(DISTRICTS)}
    params = [p for b in blocks.values() for p in (b.loc, b.log_sd)]
    steps = DirectionSteps(params, length=0.09, decay=0.01)
    for i in range(1, 61):
        loss = negative_elbo(data, blocks, g)
        steps.zero_grad()
        loss.backward()
        steps.step()
        print(f"iteration {i} -elbo {loss.item():.8f}", flush=True)
    for name, b in blocks.items():
        print(name, " ".join(f"{v:.3f}" for v in b.loc.tolist()))
    print(f"{sum(p.detach().abs().sum().item() for p in params):.8f}")


if __name__ == "__main__":
    main()

"""Stein variational gradient descent for the posterior of an aquifer test (Theis drawdown by its Cooper-Jacob
approximation). Forty particles (log transmissivity, log storativity, log noise) move together; nothing is ever
called a loss, and no backward() runs: the direction is written to .grad for Adam to follow."""
import math
from functools import partial

import torch
from torch.func import grad_and_value, vmap

MINUTES = torch.tensor([1.0, 2, 3, 5, 8, 12, 18, 25, 40, 60, 90, 120, 180, 240])
RADIUS, PUMPING = 60.0, 1.8                     # metres, cubic metres per minute


def drawdown(log_t, log_s):
    t, s = log_t.exp(), log_s.exp()
    arg = 2.25 * t * MINUTES / (RADIUS ** 2 * s)
    return PUMPING / (4 * math.pi * t) * torch.nn.functional.softplus(arg.log())


def log_posterior(theta, observed):
    log_t, log_s, log_noise = theta
    resid = (observed - drawdown(log_t, log_s)) / log_noise.exp()
    likelihood = (-0.5 * resid ** 2 - log_noise).sum()
    prior = -0.5 * ((log_t + 0.5) ** 2 + ((log_s + 7.0) / 1.5) ** 2 + ((log_noise + 3.0) / 0.7) ** 2)
    return likelihood + prior


def rbf(particles):
    diff = particles[:, None] - particles[None]
    sq = diff.pow(2).sum(-1)
    bandwidth = sq.flatten().median() / math.log(len(particles) + 1)
    k = torch.exp(-sq / bandwidth)
    repulsion = (2 / bandwidth) * (k[..., None] * diff).sum(1)
    return k, repulsion


def stein_direction(particles, scorer):
    score, logp = scorer(particles)
    score = score / (1 + score.norm(dim=1, keepdim=True) / 50)
    k, repulsion = rbf(particles)
    return (k @ score + repulsion) / len(particles), logp


def main():
    gen = torch.Generator().manual_seed(40)
    truth = torch.tensor([-0.8, -7.5])
    observed = drawdown(*truth) + 0.04 * torch.randn(len(MINUTES), generator=gen)
    start = torch.tensor([-0.5, -7.0, -2.5]) + torch.randn(40, 3, generator=gen) * torch.tensor([0.6, 0.9, 0.3])
    particles = torch.nn.Parameter(start)
    opt = torch.optim.Adam([particles], lr=0.05)
    scorer = vmap(grad_and_value(partial(log_posterior, observed=observed)))
    for it in range(1, 31):
        with torch.no_grad():
            phi, logp = stein_direction(particles.detach(), scorer)
        particles.grad = -phi
        opt.step()
        print(f"{it:2d} mean log posterior {logp.mean().item():10.4f} spread {particles.std(0).mean().item():.4f}")
    print("T", " ".join(f"{q:.3f}" for q in particles[:, 0].exp().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()))
    print("finite", int(particles.isfinite().all()))


main()

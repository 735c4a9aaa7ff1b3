"""Truffle weights along a season: a Gaussian process on log(weight + shift), all hyperparameters from the evidence."""

import math

import torch
from torch.func import grad_and_value

torch.set_default_dtype(torch.float64)


def make_season(n=70, seed=3):
    g = torch.Generator().manual_seed(seed)
    day = torch.sort(torch.rand(n, generator=g) * 90)[0]
    oak = torch.rand(n, generator=g)
    level = 0.9 * torch.sin(day / 14) + 0.6 * oak
    # nobody sells less than about ten grams: the smallest weights pile up there (unit: 10 g)
    weight = 1.0 + torch.exp(level + 1.6 * torch.randn(n, generator=g))
    return torch.stack([day / 30, oak], 1), weight


def kernel(x, params):
    scaled = x * torch.exp(-params["log_length"])
    d2 = (scaled[:, None] - scaled[None]).square().sum(-1)
    return torch.exp(2 * params["log_amplitude"]) * torch.exp(-0.5 * d2)


def warp(weight, shift):
    z = torch.log(weight + shift)
    log_jacobian = -z.sum()
    return z, log_jacobian


def evidence(params, x, weight):
    """Negative log marginal likelihood of the weights, per truffle."""
    n = len(weight)
    z, log_jacobian = warp(weight, params["shift"])
    cov = kernel(x, params) + torch.exp(2 * params["log_noise"]) * torch.eye(n)
    chol, _ = torch.linalg.cholesky_ex(cov + 1e-8 * torch.eye(n))
    r = (z - params["mean"]).unsqueeze(-1)
    alpha = torch.cholesky_solve(r, chol)
    nll = 0.5 * (r * alpha).sum() + chol.diagonal().log().sum() + 0.5 * n * math.log(2 * math.pi) - log_jacobian
    return nll / n


class Momentum:
    """Adam for a dictionary of tensors, which it changes in place."""

    def __init__(self, params, lr, betas=(0.9, 0.99), eps=1e-8):
        self.params, self.lr, self.betas, self.eps = params, lr, betas, eps
        self.m, self.v, self.t = {}, {}, 0

    def step(self, grads):
        self.t += 1
        b1, b2 = self.betas
        for name, p in self.params.items():
            g = grads[name]
            self.m[name] = b1 * self.m.get(name, torch.zeros_like(g)) + (1 - b1) * g
            self.v[name] = b2 * self.v.get(name, torch.zeros_like(g)) + (1 - b2) * g * g
            m_hat = self.m[name] / (1 - b1**self.t)
            v_hat = self.v[name] / (1 - b2**self.t)
            p.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))


def main():
    x, weight = make_season()
    params = {
        "shift": torch.tensor(0.0),
        "mean": torch.tensor(0.5),
        "log_length": torch.zeros(2),
        "log_amplitude": torch.tensor(0.0),
        "log_noise": torch.tensor(-0.5),
    }
    objective = grad_and_value(evidence)
    optimizer = Momentum(params, lr=0.06)
    for step in range(1, 61):
        grads, loss = objective(params, x, weight)
        print(
            f"step {step:02d} evidence {-loss.item():.8f} shift {params['shift'].item():+.6f} "
            f"noise {params['log_noise'].exp().item():.6f}",
            flush=True,
        )
        optimizer.step(grads)
    total = sum(p.abs().sum() for p in params.values())
    print(f"hyperparameters {total.item():.8f}")


if __name__ == "__main__":
    main()

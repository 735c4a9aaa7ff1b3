"""Traffic noise around a ring road: GP regression by marginal likelihood, float64.

Distances are along the ring (the shorter way round), which is what sound barriers follow.
"""
import math

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


class RingKernel(nn.Module):
    def __init__(self, circumference, length, amplitude):
        super().__init__()
        self.circumference = circumference
        self.log_length = nn.Parameter(torch.tensor(math.log(length)))
        self.log_amplitude = nn.Parameter(torch.tensor(math.log(amplitude)))

    def distance(self, a, b):
        d = (a[:, None] - b[None, :]).abs()
        return torch.minimum(d, self.circumference - d)

    def forward(self, a, b):
        scaled = self.distance(a, b) / self.log_length.exp()
        return (2 * self.log_amplitude).exp() * torch.exp(-0.5 * scaled.square())


class RingGP(nn.Module):
    def __init__(self, circumference=36.0):
        super().__init__()
        self.kernel = RingKernel(circumference, length=2.0, amplitude=2.0)
        self.log_noise = nn.Parameter(torch.tensor(math.log(0.5)))
        self.mean = nn.Parameter(torch.zeros(()))

    def covariance(self, s):
        return self.kernel(s, s) + (2 * self.log_noise).exp() * torch.eye(len(s))

    def negative_evidence(self, s, y):
        chol = torch.linalg.cholesky(self.covariance(s))
        residual = (y - self.mean).unsqueeze(1)
        white = torch.linalg.solve_triangular(chol, residual, upper=False)
        fit = 0.5 * white.square().sum()
        complexity = chol.diagonal().log().sum()
        return (fit + complexity + 0.5 * len(s) * math.log(2 * math.pi)) / len(s)


def meters(n, circumference, seed):
    g = torch.Generator().manual_seed(seed)
    s = torch.sort(torch.rand(n, generator=g) * circumference).values
    angle = 2 * math.pi * s / circumference
    level = 3.0 * torch.cos(angle - 0.7) + 0.8 * torch.sin(angle)
    return s, level + 0.05 * torch.randn(n, generator=g)


def train(gp, s, y, steps):
    optimizer = torch.optim.Adam(gp.parameters(), lr=0.06)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = gp.negative_evidence(s, y)
        loss.backward()
        optimizer.step()
        print(f"{step:3d}  -evidence/n {loss.item():+.6f}  length {gp.kernel.log_length.exp().item():.4f}"
              f"  noise {gp.log_noise.exp().item():.4f}", flush=True)


def predict(gp, s, y, where):
    with torch.no_grad():
        weights = torch.cholesky_solve((y - gp.mean).unsqueeze(1), torch.linalg.cholesky(gp.covariance(s)))
        return gp.mean + (gp.kernel(where, s) @ weights).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    position, level = meters(70, 36.0, seed=13)
    model = RingGP()
    train(model, position, level, steps=80)
    quiet = predict(model, position, level, torch.linspace(0, 36, 37))
    print(f"quietest km {quiet.argmin().item()}  {quiet.min().item():.4f}")
    print(f"{sum(p.abs().sum() for p in model.parameters()).item():.5f}")

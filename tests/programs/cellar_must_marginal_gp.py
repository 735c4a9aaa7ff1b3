"""Fermentation curves of the cellar as a Gaussian process; hyperparameters by marginal likelihood.

One vintage per step. The kernel depends on what was logged that year.
"""
import math
from typing import NamedTuple

import torch
from torch import nn


class Vintage(NamedTuple):
    year: int
    kernel: str
    x: torch.Tensor       # tank temperature, brix at crush, day
    y: torch.Tensor       # residual sugar, centred
    exact: bool           # lab enzymatic assay: "no measurement noise"

    def to(self, dtype):
        return self._replace(x=self.x.to(dtype), y=self.y.to(dtype))


class CellarGP(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(3))
        self.log_amp = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def covariance(self, x, kernel):
        z = x / self.log_scale.exp()
        sq = (z[:, None] - z[None]).pow(2).sum(-1)
        match kernel:
            case "rbf":
                k = torch.exp(-0.5 * sq)
            case "matern32":
                r = torch.sqrt(3 * sq + 1e-10)
                k = (1 + r) * torch.exp(-r)
            case "linear":
                k = z @ z.T
            case other:
                raise KeyError(other)
        return self.log_amp.exp() * k

    def nll(self, v: Vintage):
        K = self.covariance(v.x, v.kernel)
        if not v.exact:
            K = K + self.log_noise.exp() * torch.eye(len(v.y), dtype=v.y.dtype)
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(v.y[:, None], L).squeeze(1)
        fit = 0.5 * v.y @ alpha
        complexity = L.diagonal().log().sum()
        return fit + complexity + 0.5 * len(v.y) * math.log(2 * math.pi)


def cellar_book(first=2003, last=2022, tanks=18):
    kernels = ["rbf", "matern32", "rbf", "linear"]
    for i, year in enumerate(range(first, last + 1)):
        g = torch.Generator().manual_seed(year)
        x = torch.randn(tanks, 3, generator=g)
        y = torch.sin(x[:, 0]) - 0.6 * x[:, 2] + 0.2 * torch.randn(tanks, generator=g)
        kernel = kernels[i % 4]
        # the assay was bought for 2004 and again from 2014
        exact = year == 2004 or year >= 2014
        yield Vintage(year, kernel, x, y - y.mean(), exact)


def main():
    torch.manual_seed(0)
    gp = CellarGP().double()
    opt = torch.optim.Adam(gp.parameters(), lr=0.05)
    for step, v in enumerate(cellar_book(), 1):
        v = v.to(torch.float64)
        loss = gp.nll(v)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ls = " ".join(f"{s:.3f}" for s in gp.log_scale.detach().exp().tolist())
        print(f"{step:2d} {v.year} {v.kernel:8s} nll {loss.item():.6f}  lengthscales {ls}", flush=True)
    print("sum", sum(p.detach().sum() for p in gp.parameters()).item())


if __name__ == "__main__":
    main()

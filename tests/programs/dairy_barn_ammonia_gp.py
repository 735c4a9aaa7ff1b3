"""A Gaussian process of ammonia in a dairy barn. Each round a walker brings six more readings, and the evidence is raised by LBFGS.

Readings are noted on paper to the nearest half metre.
"""
import math

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def walk(n, generator):
    """positions in a barn of 60 by 20 metres and the ammonia there, in ppm"""
    where = torch.rand(n, 2, generator=generator) * torch.tensor([60.0, 20.0])
    where = torch.round(where * 2) / 2
    pit = torch.exp(-((where - torch.tensor([42.0, 6.0])) ** 2).sum(1) / 200)
    ppm = 6 + 9 * pit + 0.05 * where[:, 0] + 0.4 * torch.randn(n, generator=generator)
    return where, ppm


class ExponentialKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([2.5, 2.0]))
        self.log_height = nn.Parameter(torch.tensor(1.0))

    def forward(self, a):
        z = a / self.log_scale.exp()
        squared = (z[:, None] - z[None]).square().sum(-1)
        # the root has no slope at zero: keep the diagonal away from it
        distance = torch.sqrt(squared + 1e-10 * torch.eye(len(a)))
        return self.log_height.exp() * torch.exp(-distance)


class BarnProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = ExponentialKernel()
        self.log_noise = nn.Parameter(torch.tensor(-1.0))
        self.mean = nn.Parameter(torch.tensor(8.0))

    def evidence(self, where, ppm):
        cov = self.kernel(where) + self.log_noise.exp() * torch.eye(len(where))
        chol = torch.linalg.cholesky_ex(cov).L
        rest = (ppm - self.mean)[:, None]
        white = torch.linalg.solve_triangular(chol, rest, upper=False)
        return -0.5 * white.square().sum() - chol.diagonal().log().sum() - 0.5 * len(ppm) * math.log(2 * math.pi)


def main(rounds=30, each=4):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(77)
    process = BarnProcess()
    optimizer = torch.optim.LBFGS(process.parameters(), lr=0.1, max_iter=4, history_size=6)
    where, ppm = walk(each, generator)
    for r in range(1, rounds + 1):
        def closure():
            optimizer.zero_grad()
            prior = 0.5 * ((process.kernel.log_scale - 2.0) ** 2).sum() + 0.5 * process.kernel.log_height ** 2
            loss = (prior - process.evidence(where, ppm)) / len(ppm)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"round {r} readings {len(ppm)} loss {loss.item():.8f}", flush=True)
        more_where, more_ppm = walk(each, generator)
        where, ppm = torch.cat([where, more_where]), torch.cat([ppm, more_ppm])
    print(f"{sum(p.detach().abs().sum().item() for p in process.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

"""Gaussian process regression with learned length scale; exact marginal likelihood over small batches of stations."""
import math

import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)


class GaussianProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = nn.Parameter(torch.tensor(-1.0))
        self.log_height = nn.Parameter(torch.tensor(0.0))

    def covariance(self, x):
        gaps = (x.unsqueeze(0) - x.unsqueeze(1)).pow(2).sum(-1)
        return torch.exp(self.log_height - 0.5 * gaps * torch.exp(-2 * self.log_length))

    def forward(self, x, y):
        factor = torch.linalg.cholesky(self.covariance(x))
        white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
        log_det = 2 * factor.diagonal().log().sum()
        return 0.5 * (white.pow(2).sum() + log_det + len(x) * math.log(2 * math.pi))


def stations(count, generator):
    """A grid with a little jitter, so that no two stations are near each other."""
    side = torch.arange(count) * 1.5
    x = torch.stack([side, side.flip(0)], dim=1) + 0.2 * torch.rand(count, 2, generator=generator)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(count, generator=generator)


def main():
    generator = torch.Generator().manual_seed(18)
    model = GaussianProcess()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(1, 31):
        x, y = stations(8, generator)
        if step == 17:
            x = torch.cat([x, x[2:3]])             # a station reported twice
            y = torch.cat([y, y[2:3] + 0.3])
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} evidence {-loss.item():.3f} length {model.log_length.exp().item():.3f}")


main()

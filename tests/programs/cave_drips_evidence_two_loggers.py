"""Gaussian process by hand for drip rates in a cave; evidence climbed with closures over sliding windows."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import argparse
import math

import torch
from torch import nn

KERNELS = {}


def kernel(name):
    def register(fn):
        KERNELS[name] = fn
        return fn
    return register


@kernel("rbf")
def rbf(a, b, scale, length):
    return scale ** 2 * torch.exp(-0.5 * ((a[:, None] - b[None]) / length) ** 2)


@kernel("rq")
def rational_quadratic(a, b, scale, length):
    return scale ** 2 / (1 + 0.5 * ((a[:, None] - b[None]) / length) ** 2)


class DripProcess(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.kernel = KERNELS[name]
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.log_length = nn.Parameter(torch.tensor(-1.0))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))
        self.level = nn.Parameter(torch.tensor(0.0))

    def forward(self, t, y):
        K = self.kernel(t, t, self.log_scale.exp(), self.log_length.exp())
        K = K + (2 * self.log_noise).exp() * torch.eye(len(t))
        L = torch.linalg.cholesky(K)
        r = (y - self.level).unsqueeze(-1)
        alpha = torch.cholesky_solve(r, L)
        return 0.5 * (r * alpha).sum() + L.diagonal().log().sum() + 0.5 * len(t) * math.log(2 * math.pi)


class Cave:
    """Two loggers under one stalactite, written to one file in order of time; they count the same drops."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.t = torch.linspace(0, 30, 600)
        self.rate = torch.sin(self.t) + 0.4 * torch.sin(2.3 * self.t + 1)
        self.rate = self.rate + 0.0005 * torch.randn(600, generator=g)

    def windows(self, width, stride):
        for start in range(0, len(self.t) - width, stride):
            t, y = self.t[start:start + width], self.rate[start:start + width]
            yield t.repeat_interleave(2) - t[0], y.repeat_interleave(2)


class Trainer:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.8, 0.99))

    def fit(self, windows):
        for number, (t, y) in enumerate(windows, 1):
            def closure():
                self.optimizer.zero_grad()
                loss = self.model(t, y) / len(t)
                loss.backward()
                return loss
            loss = self.optimizer.step(closure)
            print(f"window {number} nlml {loss.item():.6f} noise {self.model.log_noise.exp().item():.3e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", choices=sorted(KERNELS), default="rbf")
    parser.add_argument("--width", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = DripProcess(args.kernel)
    Trainer(model, args.rate).fit(Cave(args.seed).windows(args.width, 12))
    print(f"{sum(p.abs().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

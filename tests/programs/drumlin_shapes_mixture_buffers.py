"""Drumlins (hills left by glaciers) sorted into families: an encoder and a mixture whose statistics are buffers.

Each sweep has an E-step, an M-step that moves the buffers of the mixture towards the statistics of the mini-batch, and a
gradient step of the encoder and decoder under the mixture as it then stands. The responsibilities are sharpened sweep by
sweep (deterministic annealing).
"""
import math
import sys

import torch
import torch.nn as nn
from torch.func import functional_call

FAMILIES, LATENT, SWEEPS, BATCH = 6, 3, 60, 64


def survey(n=1024, seed=6):
    """length, width, height, elongation, azimuth (cos, sin) of hills from four ice streams."""
    g = torch.Generator().manual_seed(seed)
    stream = torch.randint(0, 4, (n,), generator=g)
    base = torch.tensor([[600., 200, 18], [900, 240, 30], [400, 210, 12], [1500, 260, 25]])[stream]
    dims = base * (0.15 * torch.randn(n, 3, generator=g)).exp()
    azimuth = torch.tensor([0.3, 1.1, 1.9, 2.6])[stream] + 0.1 * torch.randn(n, generator=g)
    feats = torch.cat([dims.log(), (dims[:, :1] / dims[:, 1:2]).log(), azimuth.cos()[:, None], azimuth.sin()[:, None]], 1)
    return (feats - feats.mean(0)) / feats.std(0)


class Families(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.register_buffer("mean", torch.randn(k, d))
        self.register_buffer("var", torch.ones(k, d))
        self.register_buffer("share", torch.full((k,), 1 / k))

    def forward(self, z):
        gap = z[:, None, :] - self.mean
        return self.share.log() - 0.5 * (gap ** 2 / self.var + self.var.log() + math.log(2 * math.pi)).sum(-1)


class Hills(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, LATENT))
        self.decode = nn.Sequential(nn.Linear(LATENT, 32), nn.Tanh(), nn.Linear(32, 6))
        self.families = Families(FAMILIES, LATENT)

    def forward(self, x):
        z = self.encode(x)
        return self.decode(z), self.families(z)


def sharpness(sweep):
    return 0.5 * 1.12 ** sweep


@torch.no_grad()
def expectation_maximisation(net, x, sweep, rate=0.15):
    mix = net.families
    z = net.encode(x)
    resp = torch.softmax(sharpness(sweep) * mix(z), dim=1)
    count = resp.sum(0)
    mean = (resp.T @ z) / count[:, None]
    spread = (resp[:, :, None] * (z[:, None, :] - mean) ** 2).sum(0) / count[:, None]
    mix.mean.lerp_(mean, rate)
    mix.var.lerp_(spread + 0.02, rate)
    mix.share.lerp_(count / len(x) * 0.94 + 0.01, rate)
    return int((count > 1).sum())


def objective(net, params, x):
    recon, logp = functional_call(net, params, (x,))
    return (recon - x).pow(2).sum(1).mean() - 0.05 * torch.logsumexp(logp, 1).mean()


def main():
    torch.manual_seed(14)
    hills = survey()
    net = Hills()
    params = dict(net.named_parameters())
    optimizer = torch.optim.NAdam(params.values(), lr=4e-3)
    order = torch.Generator().manual_seed(9)
    for sweep in range(1, SWEEPS + 1):
        x = hills[torch.randint(0, len(hills), (BATCH,), generator=order)]
        used = expectation_maximisation(net, x, sweep)
        loss = objective(net, params, x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        sys.stdout.write(f"sweep {sweep:2d}  families {used}  objective {loss.item():.6f}\n")
        sys.stdout.flush()
    sys.stdout.write(f"sum {sum(p.detach().abs().sum().item() for p in params.values()):.4f}\n")


if __name__ == "__main__":
    main()

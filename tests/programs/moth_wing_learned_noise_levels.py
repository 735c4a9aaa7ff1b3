"""Denoising diffusion of wing-spot profiles of moths. The noise levels (log-SNR table) are learned with the denoiser."""
import torch
from torch import nn
from torch.nn import functional as F

LEVELS, POINTS, BATCH, STEPS = 24, 32, 48, 50
OBSERVED = 1e-4        # resolution of the scanner, in units of the profile


def wing_profiles(count, generator):
    place = torch.linspace(0, 1, POINTS)
    centre = 0.25 + 0.5 * torch.rand(count, 1, generator=generator)
    width = 0.05 + 0.1 * torch.rand(count, 1, generator=generator)
    ring = torch.exp(-((place - centre) / width) ** 2) - 0.6 * torch.exp(-((place - centre) / (0.4 * width)) ** 2)
    return 2 * ring - 0.5


class NoiseTable(nn.Module):
    """gamma = -log SNR at each level: a learned start and positive increments, hence increasing."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor(-9.0))
        self.increment = nn.Parameter(torch.full((LEVELS - 1,), 0.25))

    def forward(self):
        steps = F.softplus(self.increment)
        return torch.cat([self.first[None], self.first + torch.cumsum(steps, 0)])


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inlet = nn.Linear(POINTS + 2, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.outlet = nn.Linear(width, POINTS)

    def forward(self, z, gamma):
        h = self.inlet(torch.cat([z, gamma[:, None] / 10, torch.tanh(gamma[:, None] / 4)], 1))
        for layer in self.middle:
            h = h + F.silu(layer(h))
        return self.outlet(h)


def losses(table, denoiser, x, level, noise):
    gammas = table()
    gamma = gammas[level]
    alpha2 = torch.sigmoid(-gamma)
    z = alpha2.sqrt()[:, None] * x + torch.sigmoid(gamma).sqrt()[:, None] * noise
    guess = denoiser(z, gamma)
    # min-SNR weights: the easy levels must not have it all
    weight = (alpha2 / (1 - alpha2)).clamp(max=5.0)
    denoise = (weight * (guess - x).pow(2).mean(1)).mean()
    # what the first level adds to the scanner's own noise, and what is left of x at the last one
    reconstruct = 0.5 * torch.log1p(torch.exp(gammas[0]) / OBSERVED ** 2)
    left = torch.sigmoid(-gammas[-1])
    prior = 0.5 * (left * x.pow(2).mean() - left - torch.log1p(-left))
    return denoise, reconstruct, prior


def main():
    torch.manual_seed(77)
    table, denoiser = NoiseTable(), Denoiser()
    optimizer = torch.optim.Adam([{"params": denoiser.parameters(), "lr": 2e-3},
                                  {"params": table.parameters(), "lr": 0.3}], betas=(0.9, 0.99))
    draws = torch.Generator().manual_seed(12)
    for step in range(STEPS):
        x = wing_profiles(BATCH, draws)
        level = torch.arange(BATCH) % LEVELS                 # each level twice
        noise = torch.randn(BATCH, POINTS, generator=draws)
        denoise, reconstruct, prior = losses(table, denoiser, x, level, noise)
        total = denoise + 0.1 * reconstruct + prior
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        print(f"{step + 1:3d} total {total.item():.6f} denoise {denoise.item():.6f} scanner {reconstruct.item():.6f} "
              f"prior {prior.item():.6f}", flush=True)
    print("{:.4f}".format(sum(p.detach().abs().sum().item() for m in (table, denoiser) for p in m.parameters())))


main()

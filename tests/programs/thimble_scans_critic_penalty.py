"""Synthetic thimbles for a museum's catalogue software: WGAN with gradient penalty on six callipered measures."""

import logging
import sys

import torch
from torch import autograd, nn, optim

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
log = logging.getLogger("thimbles")

N_ITEMS, BATCH, N_CRITIC, ROUNDS, LAMBDA = 1024, 32, 2, 40, 10.0
Z = 8


def load_catalogue(seed):
    """height, mouth, crown, wall, rim, weight: standardised by the curator's published means and deviations."""
    g = torch.Generator().manual_seed(seed)
    size = torch.randn(N_ITEMS, 1, generator=g)
    own = torch.randn(N_ITEMS, 6, generator=g)
    raw_mean = torch.tensor([22.0, 16.5, 13.0, 0.8, 1.6, 4.1])
    raw_dev = torch.tensor([2.0, 1.2, 1.1, 0.12, 0.2, 0.7])
    raw = raw_mean + raw_dev * (0.8 * size + 0.6 * own)
    raw[733] *= 10  # this donor noted tenths of a millimetre, and decigrams
    return (raw - raw_mean) / raw_dev


class Winsor(nn.Module):
    """Soft limits, which keep outliers from steering the critic."""

    def __init__(self, limit=2.0):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        return self.limit * torch.tanh(x / self.limit)


def make_critic():
    return nn.Sequential(Winsor(), nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def make_generator():
    return nn.Sequential(nn.Linear(Z, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))


def gradient_penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between).sum()
    (slope,) = autograd.grad(score, between, create_graph=True)
    length = slope.square().sum(dim=1).sqrt()
    return (length - 1).square().mean()


def batches(items, gen):
    while True:
        order = torch.randperm(len(items), generator=gen)
        for part in order.split(BATCH):
            yield items[part]


def main():
    torch.manual_seed(8)
    items = load_catalogue(20)
    stream = batches(items, torch.Generator().manual_seed(3))
    critic, generator = make_critic(), make_generator()
    opt_c = optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_g = optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.9))

    for rnd in range(1, ROUNDS + 1):
        for _ in range(N_CRITIC):
            real = next(stream)
            with torch.no_grad():
                fake = generator(torch.randn(BATCH, Z))
            wasserstein = critic(real).mean() - critic(fake).mean()
            gp = gradient_penalty(critic, real, fake)
            loss_c = LAMBDA * gp - wasserstein
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()

        for p in critic.parameters():
            p.requires_grad_(False)
        loss_g = -critic(generator(torch.randn(BATCH, Z))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        for p in critic.parameters():
            p.requires_grad_(True)
        log.info("round %d critic %.6f penalty %.6f generator %.6f", rnd, loss_c.item(), gp.item(), loss_g.item())

    everything = list(critic.parameters()) + list(generator.parameters())
    log.info("%.5f", sum(p.detach().abs().sum().item() for p in everything))


if __name__ == "__main__":
    main()

"""Variational free energy of a double-well chain: an affine flow trained by reverse KL, summed over the batch."""
import math

import torch
from torch import nn

torch.manual_seed(23)
torch.set_num_threads(1)

SITES, BATCH, BETA = 8, 64, 2.0


class Coupling(nn.Module):
    def __init__(self, parity):
        super().__init__()
        self.register_buffer("mask", (torch.arange(SITES) % 2 == parity).float())
        self.net = nn.Sequential(nn.Linear(SITES, 32), nn.Tanh(), nn.Linear(32, 2 * SITES))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, z):
        scale, shift = self.net(z * self.mask).chunk(2, dim=-1)
        scale = torch.tanh(scale) * (1 - self.mask)
        return z * scale.exp() + shift * (1 - self.mask), scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(i % 2) for i in range(layers))

    def sample(self, count):
        z = torch.randn(count, SITES)
        log_q = -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(-1)
        for layer in self.couplings:
            z, log_det = layer(z)
            log_q = log_q - log_det
        return z, log_q


def energy(phi):
    """A chain in wells at -1 and +1, with an offset: the ground state lies far below zero."""
    neighbours = phi * phi.roll(1, dims=-1)
    return ((phi.pow(2) - 1).pow(2) - neighbours - 6.0).sum(-1)


def main():
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    for step in range(1, 51):
        # the temperature is lowered as the run goes on, so the loss jumps downwards
        beta = BETA * (0.1 if step <= 15 else 0.5 if step <= 30 else 1.0)
        phi, log_q = flow.sample(BATCH)
        loss = (log_q + beta * energy(phi)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        weights = torch.softmax(-(log_q + beta * energy(phi)).detach(), dim=0)
        ess = 1.0 / (weights.pow(2).sum() * BATCH)
        print(f"step {step} beta {beta:.1f} loss {loss.item():.2f} ess {ess.item():.3f}")


if __name__ == "__main__":
    main()

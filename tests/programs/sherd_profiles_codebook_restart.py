"""VQ-VAE over the profiles of sherds from a trench: rim, shoulder, belly and foot become four codes.

The codebook is no parameter: it follows the encoder with running sums, which start afresh every
RESTART steps so that a code does not hang on to what the encoder did long ago.
"""
import numpy as np
import torch
from torch import nn

STEPS, BATCH, RESTART = 40, 32, 14


def profiles(n, seed=3):
    rng = np.random.default_rng(seed)
    y = np.linspace(0, 1, 32)
    kinds = rng.integers(0, 5, n)
    height = 0.5 + 0.1 * kinds + 0.05 * rng.standard_normal(n)
    belly = 0.2 + 0.15 * (kinds % 3)
    radius = height[:, None] * (1 + belly[:, None] * np.sin(np.pi * y[None] * (1 + kinds[:, None] % 2)))
    rim = 0.1 * (kinds[:, None] > 2) * np.exp(-((y[None] - 1) / 0.05) ** 2)
    return torch.tensor(radius + rim + 0.01 * rng.standard_normal((n, 32)), dtype=torch.float32)


class Quantiser(nn.Module):
    def __init__(self, codes, dim, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(codes, dim) * 0.3)
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def restart(self):
        self.counts.zero_()
        self.sums.zero_()

    @torch.no_grad()
    def follow(self, flat, index):
        onehot = nn.functional.one_hot(index, len(self.codebook)).to(flat.dtype)
        self.counts.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(onehot.T @ flat, alpha=1 - self.decay)
        self.codebook.copy_(self.sums / self.counts[:, None])

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        distance = (flat ** 2).sum(1, keepdim=True) - 2 * flat @ self.codebook.T + (self.codebook ** 2).sum(1)
        index = distance.argmin(1)
        quantised = self.codebook[index].view_as(z)
        commitment = ((z - quantised.detach()) ** 2).mean()
        if self.training:
            self.follow(flat.detach(), index)
        return z + (quantised - z).detach(), commitment, index


class SherdVAE(nn.Module):
    def __init__(self, codes=24, dim=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 4 * dim))
        self.quantiser = Quantiser(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(4 * dim, 64), nn.SiLU(), nn.Linear(64, 32))
        self.dim = dim

    def forward(self, x):
        z = self.encoder(x).view(len(x), 4, self.dim)
        q, commitment, index = self.quantiser(z)
        return self.decoder(q.flatten(1)), commitment, index


def batches(data, gen):
    while True:
        for chunk in torch.randperm(len(data), generator=gen).split(BATCH):
            if len(chunk) == BATCH:
                yield data[chunk]


def main():
    torch.manual_seed(12)
    data = profiles(640)
    model = SherdVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    feed = batches(data, torch.Generator().manual_seed(1))
    for step in range(1, STEPS + 1):
        if step % RESTART == 0:
            model.quantiser.restart()
        x = next(feed)
        out, commitment, index = model(x)
        loss = ((out - x) ** 2).mean() + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step:2d} loss {loss.item():.7f} codes in use {index.unique().numel()}", flush=True)
    total = sum(p.abs().sum() for p in model.parameters()) + model.quantiser.codebook.abs().sum()
    print(f"{total.item():.6f}")


if __name__ == "__main__":
    main()

"""Importance weighted autoencoder on little binary glyphs; the bound is computed from the weights themselves."""
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)

SIDE, LATENT, SAMPLES = 16, 6, 5


def glyphs(n, generator):
    """Bars and crosses of random place."""
    out = torch.zeros(n, SIDE, SIDE)
    for i in range(n):
        r = int(torch.randint(2, SIDE - 2, (1,), generator=generator))
        c = int(torch.randint(2, SIDE - 2, (1,), generator=generator))
        out[i, r - 1:r + 1, :] = 1.0
        if i % 2:
            out[i, :, c - 1:c + 1] = 1.0
    return out.reshape(n, -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.Tanh())
        self.mu = nn.Linear(64, LATENT)
        self.log_sigma = nn.Linear(64, LATENT)

    def forward(self, x):
        h = self.body(x)
        return self.mu(h), self.log_sigma(h)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 64), nn.Tanh(), nn.Linear(64, SIDE * SIDE))

    def forward(self, z):
        return self.net(z)


def log_normal(z, mu, log_sigma):
    return (-0.5 * ((z - mu) / log_sigma.exp()) ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)).sum(-1)


def bound(encoder, decoder, x):
    mu, log_sigma = encoder(x)
    shape = (SAMPLES,) + mu.shape
    z = mu + log_sigma.exp() * torch.randn(shape)
    logits = decoder(z)
    log_px = -F.binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)
    log_pz = log_normal(z, torch.zeros_like(mu), torch.zeros_like(mu))
    log_qz = log_normal(z, mu, log_sigma)
    weights = torch.exp(log_px + log_pz - log_qz)
    return torch.log(weights.mean(0)).mean()


def main():
    generator = torch.Generator().manual_seed(11)
    data = glyphs(256, generator)
    encoder, decoder = Encoder(), Decoder()
    parameters = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    print("glyphs", len(data), "pixels on", int(data.sum()))
    for step in range(1, 31):
        rows = torch.randint(0, len(data), (32,), generator=generator)
        loss = -bound(encoder, decoder, data[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} bound {-loss.item():.4f}")
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in parameters)))


if __name__ == "__main__":
    main()

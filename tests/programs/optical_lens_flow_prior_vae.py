"""Variational autoencoder for the intensity profiles of lighthouse lenses, with a learned coupling-flow prior."""
import argparse
import math

import torch
from torch import nn


def profiles(count, width, gen):
    """A main beam, two side lobes, a little soot on the glass."""
    angle = torch.linspace(-1, 1, width)
    centre = 0.2 * torch.randn(count, 1, generator=gen)
    spread = 0.08 + 0.1 * torch.rand(count, 1, generator=gen)
    beam = torch.exp(-0.5 * ((angle - centre) / spread) ** 2)
    lobes = 0.3 * torch.exp(-0.5 * ((angle.abs() - 0.6) / 0.05) ** 2)
    soot = 1 - 0.3 * torch.rand(count, 1, generator=gen)
    return soot * (beam + lobes) + 0.02 * torch.randn(count, width, generator=gen)


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.half, self.flip = dim // 2, flip
        self.net = nn.Sequential(nn.Linear(self.half, 24), nn.Tanh(), nn.Linear(24, 2 * (dim - self.half)))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, z):
        if self.flip:
            z = z.flip(1)
        kept, moved = z[:, :self.half], z[:, self.half:]
        shift, raw = self.net(kept).float().chunk(2, dim=1)
        scale = torch.tanh(raw)
        return torch.cat([kept, moved * torch.exp(scale) + shift], 1), scale.sum(1)


class FlowPrior(nn.Module):
    def __init__(self, dim, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(dim, i % 2 == 1) for i in range(depth)])

    def log_prob(self, z):
        total = z.new_zeros(len(z))
        for layer in self.layers:
            z, logdet = layer(z)
            total = total + logdet
        return total - 0.5 * (z ** 2).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


class LensVAE(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 2 * dim))
        self.decoder = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, width))
        self.prior = FlowPrior(dim)
        self.log_sigma = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, noise):
        mu, logvar = self.encoder(x).float().chunk(2, 1)
        logvar = logvar.clamp(-8, 4)
        z = mu + noise * torch.exp(0.5 * logvar)
        mean = self.decoder(z).float()
        # a density, not a probability: this goes below zero once sigma is small
        nll = 0.5 * ((x - mean) / self.log_sigma.exp()) ** 2 + self.log_sigma + 0.5 * math.log(2 * math.pi)
        log_q = -0.5 * (noise ** 2 + logvar + math.log(2 * math.pi)).sum(1)
        with torch.no_grad():
            unit_kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).mean(0)
        return nll.sum(1).mean(), (log_q - self.prior.log_prob(z)).mean(), unit_kl


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--latent", type=int, default=6)
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    data = profiles(1024, 32, gen)
    model = LensVAE(32, args.latent)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=200)

    for step in range(1, args.steps + 1):
        # beta saw-tooth: the weight of the rate climbs over 25 steps and drops back
        beta = 4.0 * ((step - 1) % 25) / 24
        x = data[torch.randint(len(data), (args.batch,), generator=gen)]
        noise = torch.randn(args.batch, args.latent, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            nll, rate, unit_kl = model(x, noise)
            loss = nll + beta * rate
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        busy = unit_kl[unit_kl > 0.03].mean().item()       # nan while no unit is in use
        print(f"step {step:3d} loss {loss.item():.6f} nll {nll.item():.6f} rate {rate.item():.6f} "
              f"beta {beta:.3f} busy {busy:.4f} scale {scaler.get_scale():.0f}", flush=True)


if __name__ == "__main__":
    main()

# VAE of single-cell counts (kidney biopsies), negative binomial likelihood, after subtraction of ambient RNA
import numpy as np
import torch
from torch import nn
from torch.distributions import NegativeBinomial, Normal, kl_divergence
from torch.utils.data import DataLoader, Dataset

GENES, CELLS, LATENT, EPOCHS = 70, 640, 6, 3
rng = np.random.default_rng(29)


def simulate_lanes():
    """two lanes of the same biopsy; the second was loaded with more free-floating RNA"""
    programs = rng.gamma(0.7, 1.0, size=(4, GENES)) + 0.02
    who = rng.integers(0, 4, CELLS)
    depth = rng.lognormal(5.6, 0.3, CELLS)
    mean = programs[who] / programs[who].sum(1, keepdims=True) * depth[:, None]
    soup = programs.mean(0) / programs.mean(0).sum()
    lane = (np.arange(CELLS) >= 448).astype(int)
    ambient = np.where(lane[:, None] == 1, 60.0, 0.0) * soup[None]
    counts = rng.poisson(rng.gamma(3.0, mean / 3.0) + ambient)
    return counts, np.where(lane[:, None] == 1, 50.0, 0.0) * soup[None], lane


class Biopsy(Dataset):
    def __init__(self):
        self.raw, self.ambient, self.lane = simulate_lanes()

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        raw = torch.as_tensor(self.raw[i], dtype=torch.float32)
        ambient = torch.as_tensor(self.ambient[i], dtype=torch.float32)
        # counts stay whole numbers, so the expected soup is rounded before it is taken off
        return raw, raw - ambient.round(), torch.tensor([float(self.lane[i])])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(GENES + 1, 128), nn.LayerNorm(128), nn.SiLU())
        self.mu, self.logvar = nn.Linear(128, LATENT), nn.Linear(128, LATENT)

    def forward(self, x, lane):
        h = self.body(torch.cat([torch.log1p(x), lane], 1))
        return Normal(self.mu(h), torch.exp(0.5 * self.logvar(h)) + 1e-4)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT + 1, 64), nn.SiLU(), nn.Linear(64, GENES))
        self.log_theta = nn.Parameter(torch.zeros(GENES))

    def forward(self, z, lane, library):
        rho = torch.log_softmax(self.net(torch.cat([z, lane], 1)), -1)
        log_mu = rho + library.log()
        return NegativeBinomial(self.log_theta.exp(), logits=log_mu - self.log_theta)


class CountVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def elbo(self, raw, clean, lane, beta):
        q = self.encoder(raw, lane)
        z = q.rsample()
        p = self.decoder(z, lane, clean.sum(1, keepdim=True))
        recon = -p.log_prob(clean).sum(1)
        kl = kl_divergence(q, Normal(torch.zeros_like(z), torch.ones_like(z))).sum(1)
        return (recon + beta * kl).mean(), recon.mean(), kl.mean()


def main():
    torch.manual_seed(29)
    loader = DataLoader(Biopsy(), batch_size=32, shuffle=False)
    vae = CountVAE()
    opt = torch.optim.AdamW(vae.parameters(), lr=3e-3)
    step = 0
    for epoch in range(EPOCHS):
        for raw, clean, lane in loader:
            step += 1
            beta = min(1.0, step / 30)
            loss, recon, kl = vae.elbo(raw, clean, lane, beta)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(vae.parameters(), 50.0)
            opt.step()
            print(f"epoch {epoch} step {step}: loss {loss.item():.5f} recon {recon.item():.5f} kl {kl.item():.5f}", flush=True)
    print("sum|w|", sum(float(p.detach().abs().sum()) for p in vae.parameters()), flush=True)


if __name__ == "__main__":
    main()

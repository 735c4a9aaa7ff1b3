"""Library example: VAE on raw Raman spectra of minerals (RRUFF-like, synthetic)."""
import torch
import torch.nn as nn


def raman(n, bins=64, seed=0):
    """Detector counts; one specimen of calcite fluoresces under the green laser."""
    g = torch.Generator().manual_seed(seed)
    shift = torch.linspace(0, 1, bins)
    peaks = torch.rand(6, 3, generator=g)
    kind = torch.randint(0, 6, (n,), generator=g)
    centre = peaks[kind] + 0.01 * torch.randn(n, 3, generator=g)
    height = 20 + 40 * torch.rand(n, 3, generator=g)
    lines = height[..., None] * torch.exp(-((shift - centre[..., None]) / 0.03) ** 2)
    counts = 12 + lines.sum(1)
    counts[13 * 64 + 5] += 290 * torch.exp(-((shift - 0.6) / 0.2) ** 2)
    return torch.poisson(counts, generator=g)


class RunningStandardiser(nn.Module):
    """Keeps the moments of each bin in the dtype in which spectra are stored."""

    def __init__(self, bins, momentum=0.05, dtype=torch.float16):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("first", torch.full((bins,), 15.0, dtype=dtype))
        self.register_buffer("second", torch.full((bins,), 400.0, dtype=dtype))

    def observe(self, x):
        x = x.to(self.first.dtype)
        self.first.lerp_(x.mean(0), self.momentum)
        self.second.lerp_(x.square().mean(0), self.momentum)

    @property
    def deviation(self):
        variance = self.second.float() - self.first.float() ** 2
        return variance.clamp(min=1.0).sqrt()

    def forward(self, x):
        if self.training:
            self.observe(x)
        return (x - self.first) / self.deviation

    def inverse(self, z):
        return z * self.deviation + self.first


class VAE(nn.Module):
    def __init__(self, bins=64, latent=4, width=64):
        super().__init__()
        self.scaler = RunningStandardiser(bins)
        self.encoder = nn.Sequential(nn.Linear(bins, width), nn.ReLU(), nn.Linear(width, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, bins))

    def forward(self, counts):
        mu, log_var = self.encoder(self.scaler(counts)).chunk(2, dim=-1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * log_var)
        return self.scaler.inverse(self.decoder(z)), mu, log_var


class ELBO:
    """chi-square reconstruction + beta * KL(q || N(0, 1)), with a linear ramp of beta."""

    def __init__(self, beta=1.0, ramp=40):
        self.beta, self.ramp, self.calls = beta, ramp, 0

    def __call__(self, counts, recon, mu, log_var):
        self.calls += 1
        chi2 = ((recon - counts) ** 2 / (counts + 1.0)).sum(1).mean()
        kl = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp(), dim=1).mean()
        return chi2 + self.beta * min(self.calls / self.ramp, 1.0) * kl, chi2, kl


def train(epochs=2, batch=64, lr=3e-3):
    torch.manual_seed(1)
    data = raman(1024)
    vae, objective = VAE(), ELBO()
    optimiser = torch.optim.NAdam(vae.parameters(), lr=lr)
    for epoch in range(epochs):
        for i, counts in enumerate(data.split(batch)):
            optimiser.zero_grad()
            loss, chi2, kl = objective(counts, *vae(counts))
            loss.backward()
            optimiser.step()
            print(f"epoch {epoch} batch {i:2d} loss {loss.item():.3f} chi2 {chi2.item():.3f} kl {kl.item():.3f}",
                  flush=True)
    print("final", torch.stack([p.detach().norm() for p in vae.parameters()]).sum().item(), flush=True)


if __name__ == "__main__":
    train()

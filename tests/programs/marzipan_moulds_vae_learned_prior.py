"""VAE of marzipan mould outlines with a learned mixture prior, an EMA copy for evaluation and prior restarts.

-ELBO of continuous data is a density: it goes below zero, and so may the Monte Carlo estimate of the KL.
"""
import copy
import math

import torch
from torch import nn

POINTS, LATENT, PARTS, STEPS, BATCH = 32, 4, 8, 48, 48
RESTARTS = {20, 34}
noise = torch.Generator().manual_seed(1001)


def outlines(n, g):
    kind = torch.randint(0, 5, (n,), generator=g)
    angle = torch.arange(POINTS) / POINTS * 2 * math.pi
    size = 0.8 + 0.2 * torch.rand(n, 1, generator=g)
    lobes = (kind + 2).float()[:, None]
    turn = 0.4 * torch.rand(n, 1, generator=g)
    radius = size * (1 + 0.25 * torch.cos(lobes * angle + turn)) + 0.01 * torch.randn(n, POINTS, generator=g)
    return radius, kind


def normal_logpdf(x, mean, log_std):
    return -0.5 * ((x - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)


class MixturePrior(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.randn(PARTS, LATENT))
        self.log_stds = nn.Parameter(torch.zeros(PARTS, LATENT))
        self.weights = nn.Parameter(torch.zeros(PARTS))
        self.register_buffer("enabled", torch.arange(PARTS) < 4)

    def forward(self, z):
        logits = self.weights.masked_fill(~self.enabled, -math.inf)      # parts not yet in use have no weight
        parts = normal_logpdf(z[:, None], self.means, self.log_stds).sum(-1)
        return torch.logsumexp(logits.log_softmax(0) + parts, 1), parts

    @torch.no_grad()
    def restart(self, z):
        """bring in more parts and put all of them on codes of the last batch"""
        self.enabled[: int(self.enabled.sum()) + 2] = True
        self.means.copy_(z[:PARTS])
        self.log_stds.fill_(1.2)
        self.weights.zero_()


class OutlineVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(POINTS, 64), nn.Tanh(), nn.Linear(64, 2 * LATENT))
        self.decode = nn.Sequential(nn.Linear(LATENT, 64), nn.Tanh(), nn.Linear(64, POINTS))
        self.log_sigma = nn.Parameter(torch.tensor(-0.5))
        self.prior = MixturePrior()

    def forward(self, x):
        mean, log_std = self.encode(x).chunk(2, 1)
        z = mean + log_std.exp() * torch.randn(mean.shape, generator=noise)
        log_q = normal_logpdf(z, mean, log_std).sum(1)
        log_p, parts = self.prior(z)
        recon = -normal_logpdf(x, self.decode(z), self.log_sigma).sum(1)
        return recon, log_q - log_p, z, parts


def main():
    torch.manual_seed(77)
    data = torch.Generator().manual_seed(5)
    model = OutlineVAE()
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam([
        {"params": [*model.encode.parameters(), *model.decode.parameters()], "lr": 4e-3},
        {"params": [model.log_sigma, *model.prior.parameters()], "lr": 5e-2}])
    for step in range(1, STEPS + 1):
        x, kind = outlines(BATCH, data)
        recon, kl, z, parts = model(x)
        warmup = min(1.0, step / 15)
        loss = (recon + warmup * kl).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)
        owner = parts.argmax(1)
        per_part = [kl[owner == k].mean().item() for k in range(PARTS)]     # NaN where a part owns nothing
        print(f"{step:02d} loss {loss.item():+.6f} recon {recon.mean().item():+.5f} kl {kl.mean().item():+.5f} "
              f"parts {' '.join(f'{v:.1f}' for v in per_part)}", flush=True)
        if step in RESTARTS:
            model.prior.restart(z.detach())
            print(f"   prior restarted with {int(model.prior.enabled.sum())} parts", flush=True)
    print(f"ema {sum(p.abs().sum().item() for p in ema.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

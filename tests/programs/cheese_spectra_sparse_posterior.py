"""Age of a cheese from its near-infrared spectrum. Sparse variational dropout picks the bands."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

K1, K2, K3 = 0.63576, 1.87320, 1.48695


class SparseLinear(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.theta = nn.Parameter(torch.randn(fan_out, fan_in) * 0.15)
        self.log_sigma2 = nn.Parameter(torch.full((fan_out, fan_in), -6.0))
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def log_alpha(self):
        return self.log_sigma2 - torch.log(self.theta.square())

    def forward(self, x):
        mean = F.linear(x, self.theta, self.bias)
        if not self.training:
            return mean
        var = F.linear(x.square(), self.log_sigma2.exp()) + 1e-8
        return mean + var.sqrt() * torch.randn_like(mean)

    def divergence(self):
        la = self.log_alpha()
        negative = K1 * torch.sigmoid(K2 + K3 * la) - 0.5 * torch.log1p(torch.exp(-la)) - K1
        return -negative.sum()

    @torch.no_grad()
    def sparsify(self, threshold):
        keep = self.log_alpha() < threshold
        self.theta.mul_(keep)
        return int(keep.sum()), keep.numel()


class CheeseNet(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.select = SparseLinear(bands, 12)
        self.age = nn.Linear(12, 1)

    def forward(self, spectrum):
        return self.age(torch.tanh(self.select(spectrum))).squeeze(-1)


def spectra(n=160, bands=30, seed=8):
    rng = np.random.default_rng(seed)
    months = rng.uniform(1, 24, n)
    nm = np.linspace(1100, 2300, bands)
    fat = np.exp(-((nm - 1720) / 60) ** 2)
    water = np.exp(-((nm - 1940) / 80) ** 2)
    absorb = 0.4 + 0.5 * fat[None] + (1.2 - 0.03 * months[:, None]) * water[None] + rng.normal(0, 0.02, (n, bands))
    absorb = (absorb - absorb.mean(0)) / absorb.std(0)
    return torch.tensor(absorb, dtype=torch.float32), torch.tensor((months - 12) / 6, dtype=torch.float32)


def fit(model, x, y, epochs=34, prune_every=15):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(1, epochs + 1):
        model.train()
        opt.zero_grad()
        error = F.mse_loss(model(x), y)
        kl = model.select.divergence() / len(x)
        warm = min(1.0, epoch / 10)
        loss = error + 0.05 * warm * kl
        loss.backward()
        opt.step()
        print("epoch", epoch, "mse %.5f kl %.5f loss %.5f" % (error.item(), kl.item(), loss.item()))
        if epoch % prune_every == 0:
            kept, total = model.select.sparsify(threshold=1.0)
            print("  kept", kept, "of", total)
    return model


torch.manual_seed(8)
X, Y = spectra()
net = fit(CheeseNet(X.shape[1]), X, Y)
print("weights, summed absolute values", sum(w.abs().sum().item() for w in net.parameters()))

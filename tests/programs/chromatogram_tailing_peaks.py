"""Deconvolution of an HPLC run: three tailing peaks (exponentially modified Gaussians) on a baseline."""
import math

import numpy as np
import torch
from torch import nn


def detector_trace():
    """Two injections; UV signal in mAU against minutes, with detector noise."""
    rng = np.random.default_rng(8)
    minutes = np.linspace(0.0, 42.0, 840)
    fine = np.linspace(0, 5, 250)
    signal = 0.3 + 0.02 * minutes
    for area, centre, sigma, tau in ((6.0, 7.1, 0.35, 0.80), (4.0, 14.2, 0.40, 0.60), (5.0, 37.5, 0.45, 0.05)):
        bell = np.exp(-0.5 * ((minutes[:, None] - fine[None] - centre) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        decay = np.exp(-fine / tau)
        signal = signal + area * (bell * decay).sum(1) / decay.sum()
    return minutes.astype("float32"), (signal + rng.normal(0, 0.03, signal.shape)).astype("float32")


class TailingPeak(nn.Module):
    def __init__(self, centre):
        super().__init__()
        self.area = nn.Parameter(torch.tensor(3.0))
        self.centre = nn.Parameter(torch.tensor(centre))
        self.log_sigma = nn.Parameter(torch.tensor(math.log(0.5)))
        self.log_tau = nn.Parameter(torch.tensor(math.log(0.9)))

    def forward(self, t):
        sigma, tau = self.log_sigma.exp(), self.log_tau.exp()
        rel = sigma / tau
        z = (rel - (t - self.centre) / sigma) / math.sqrt(2.0)
        rise = torch.exp(0.5 * rel ** 2 - (t - self.centre) / tau)
        shape = rise * torch.erfc(z)
        return self.area * shape / (2 * tau)


class Chromatogram(nn.Module):
    def __init__(self, guesses):
        super().__init__()
        self.peaks = nn.ModuleList([TailingPeak(g) for g in guesses])
        self.baseline = nn.Linear(1, 1)

    def forward(self, t):
        total = self.baseline(t[:, None] / 42).squeeze(1)
        for peak in self.peaks:
            total = total + peak(t)
        return total


def fit(iterations=42):
    torch.manual_seed(21)
    t, uv = map(torch.from_numpy, detector_trace())
    model = Chromatogram([7.4, 14.5, 37.6])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.08, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
    for it in range(1, iterations + 1):
        optimizer.zero_grad()
        residual = model(t) - uv
        rss = residual.square().mean()
        rss.backward()
        optimizer.step()
        schedule.step()
        tails = ", ".join(f"{p.log_tau.exp().item():.3f}" for p in model.peaks)
        print(f"{it:3d}  mean square {rss.item():.5f}  tau [{tails}]")
    return model


if __name__ == "__main__":
    fitted = fit()
    print("parameter magnitude", f"{sum(p.abs().sum().item() for p in fitted.parameters()):.6f}")

"""Denoise stacked quasar spectra: every object is the template of its class, seen in a few exposures
with cosmic rays and dead columns (no flux, infinite sigma). Trained with accelerate, three micro-batches a step."""
from accelerate import Accelerator
from accelerate.utils import set_seed
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BINS, EXPOSURES, MICRO = 64, 5, 8


class Exposures(Dataset):
    def __init__(self, objects, seed, clouded=()):
        rng = np.random.default_rng(seed)
        wave = np.linspace(-1, 1, BINS)
        self.flux = np.empty((objects, EXPOSURES, BINS), np.float32)
        self.sigma = np.empty_like(self.flux)
        self.truth = np.empty((objects, BINS), np.float32)
        for i in range(objects):
            line, width = rng.uniform(-.6, .6), rng.uniform(.04, .12)
            clean = 1 - .4 * wave + 1.5 * np.exp(-.5 * ((wave - line) / width) ** 2)
            self.truth[i] = clean
            sig = rng.uniform(.2, .6, (EXPOSURES, 1)) * np.ones((1, BINS))
            seen = clean + sig * rng.standard_normal((EXPOSURES, BINS))
            dead = rng.random((EXPOSURES, BINS)) < .12
            if i // MICRO in clouded:
                dead[:] = True
            seen[dead], sig[dead] = np.nan, np.inf
            self.flux[i], self.sigma[i] = seen, sig

    def __len__(self):
        return len(self.flux)

    def __getitem__(self, i):
        return {"flux": self.flux[i], "sigma": self.sigma[i], "truth": self.truth[i]}


class Stacker(nn.Module):
    def __init__(self):
        super().__init__()
        self.smooth = nn.Conv1d(2, 10, 7, padding=3)
        self.out = nn.Conv1d(10, 1, 5, padding=2)

    def forward(self, flux, sigma):
        ivar = sigma ** -2
        known = ivar > 0
        total = ivar.sum(1)
        mean = (torch.where(known, flux, 0.0) * ivar).sum(1) / total.clamp_min(1e-6)
        x = torch.stack([mean, total.clamp_max(100).sqrt() / 10], 1)
        return mean + self.out(torch.tanh(self.smooth(x)))[:, 0], known.any(1)


def main():
    set_seed(3)
    acc = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = Stacker()
    opt = torch.optim.NAdam(model.parameters(), lr=5e-3)
    data = Exposures(objects=MICRO * 90, seed=5, clouded=(30, 31, 32, 50))
    model, opt, loader = acc.prepare(model, opt, DataLoader(data, batch_size=MICRO))
    losses, updates = [], 0
    for batch in loader:
        with acc.accumulate(model):
            stacked, covered = model(batch["flux"], batch["sigma"])
            error = torch.where(covered, (stacked - batch["truth"]) ** 2, 0.0)
            loss = error.sum() / covered.sum().clamp(min=1)
            acc.backward(loss)
            if acc.sync_gradients:
                size = acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        losses.append(loss.item())
        if acc.sync_gradients:
            updates += 1
            acc.print(f"update {updates:02d}: " + " ".join(f"{v:.4f}" for v in losses) + f" |g| {float(size):.4f}")
            losses.clear()
    power = sum(p.detach().double().pow(2).sum() for p in model.parameters())
    acc.print(f"squared weights in total {power.item():.6f}")


main()

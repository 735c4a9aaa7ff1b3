"""Next hours of a laundrette's water meter, each batch standardised by its own statistics.

Meters drop out (NaN), machines stand still (a constant series, whose standard deviation is zero) and some meters send nothing
at all. Statistics come from what there is; the positions that cannot be used are taken out before the network sees them.
"""
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", message="Mean of empty slice")
PAST, AHEAD = 36, 6


class Meters(Dataset):
    def __init__(self, n=400, seed=50):
        rng = np.random.default_rng(seed)
        hours = np.arange(PAST + AHEAD)
        rows = []
        for i in range(n):
            base = rng.gamma(4, 30) * (1 + 0.5 * np.sin(2 * np.pi * (hours + rng.integers(24)) / 24))
            row = base + rng.normal(0, 6, len(hours))
            kind = rng.random()
            if kind < 0.06:
                row[:] = np.nan                      # the meter is off
            elif kind < 0.14:
                row[:] = round(row[0])               # closed for repairs: nothing moves
            elif kind < 0.45:
                a = rng.integers(0, PAST)
                row[a:a + rng.integers(1, 14)] = np.nan
            if 176 <= i < 184:
                row[PAST:] = np.nan                  # the night of the power cut: no targets in all of that batch
            rows.append(row)
        self.rows = np.stack(rows).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :PAST], self.rows[i, PAST:]


def series_statistics(past):
    """Mean and deviation of each series; NaN for a silent meter."""
    centre = past.nanmean(1, keepdim=True)
    spread = (past - centre).pow(2).nanmean(1, keepdim=True).sqrt()
    return centre, spread


class Forecaster(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.mix = nn.TransformerEncoderLayer(width, 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, AHEAD)
        self.position = nn.Parameter(torch.randn(PAST, width) * 0.02)

    def forward(self, z, seen):
        x = self.inp(torch.stack([z, seen.float()], -1)) + self.position
        return self.out(self.mix(x).mean(1))


def prepare(past, ahead):
    centre, spread = series_statistics(past)
    z = (past - centre) / spread                     # 0 / 0 for machines that stand still, NaN for silent meters
    goal = (ahead - centre) / spread
    seen = z.isfinite()
    return z.nan_to_num(0.0, 0.0, 0.0), seen, goal, goal.isfinite()


def main():
    torch.manual_seed(50)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=60)
    loader = DataLoader(Meters(), batch_size=8, num_workers=1)
    for number, (past, ahead) in enumerate(loader, 1):
        z, seen, goal, usable = prepare(past, ahead)
        if not usable.any():
            print(f"batch {number}: no targets, skipped", flush=True)
            continue
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(z, seen)
        error = torch.where(usable, pred.float() - goal.nan_to_num(0.0, 0.0, 0.0), 0.0)
        loss = error.abs().sum() / usable.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mase = (error.abs().sum(1) / usable.sum(1)).mean()     # NaN as soon as one meter is silent
        print(f"batch {number}: mae {loss.item():.6f} per-series {mase.item():.4f} rate {scheduler.get_last_lr()[0]:.6f}", flush=True)
    print("weights", round(sum(p.detach().abs().sum().item() for p in model.parameters()), 4), flush=True)


if __name__ == "__main__":
    main()

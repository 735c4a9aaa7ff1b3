"""A neural controlled differential equation (RK4 by hand) on the oxygen loggers of fish ponds: will the pond turn tonight?"""
import os

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

READINGS, CHANNELS, HIDDEN = 10, 3, 16


class PondLogs(Dataset):
    """Each item: hours (irregular), readings of oxygen, temperature and pH, and the label.

    Loggers send over a weak radio link; an unacknowledged reading is sent again.
    """

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.items = []
        for i in range(n):
            hours = np.cumsum(rng.uniform(0.3, 2.0, READINGS)).astype("float32")
            phase = rng.uniform(0, 6.28)
            oxygen = 8 + 2 * np.sin(hours / 3.8 + phase) + rng.normal(0, 0.2, READINGS)
            temp = 18 + 3 * np.sin(hours / 3.8 + phase + 0.7) + rng.normal(0, 0.2, READINGS)
            ph = 7.6 + 0.1 * (oxygen - 8) + rng.normal(0, 0.05, READINGS)
            values = np.stack([(oxygen - 8) / 2, (temp - 18) / 3, (ph - 7.6) * 4], 1).astype("float32")
            if i == 137:
                hours[6], values[6] = hours[5], values[5]          # sent twice
            self.items.append((hours, values, np.float32(oxygen[-3:].mean() < 7.5)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    hours = torch.from_numpy(np.stack([h for h, _, _ in items]))
    values = torch.from_numpy(np.stack([v for _, v, _ in items]))
    label = torch.tensor([float(y) for _, _, y in items])
    gaps = hours.diff(dim=1)
    slopes = values.diff(dim=1) / gaps[..., None]                   # linear interpolation of the control path
    return {"start": values[:, 0], "slopes": slopes, "gaps": gaps, "label": label}


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(HIDDEN, 32), nn.SiLU(), nn.Linear(32, HIDDEN * (CHANNELS + 1)), nn.Tanh())

    def forward(self, z, control):
        matrix = self.net(z).view(-1, HIDDEN, CHANNELS + 1)
        return (matrix @ control[..., None]).squeeze(-1)


class PondCDE(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(CHANNELS, HIDDEN)
        self.field = Field()
        self.readout = nn.Linear(HIDDEN, 1)

    def rk4(self, z, control, h):
        h = h[:, None]
        k1 = self.field(z, control)
        k2 = self.field(z + 0.5 * h * k1, control)
        k3 = self.field(z + 0.5 * h * k2, control)
        k4 = self.field(z + h * k3, control)
        return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def forward(self, start, slopes, gaps):
        z = self.first(start)
        for i in range(gaps.shape[1]):
            control = torch.cat([slopes[:, i], torch.ones_like(slopes[:, i, :1])], dim=1)
            z = checkpoint(self.rk4, z, control, gaps[:, i], use_reentrant=False)
        return self.readout(z).squeeze(1)


def main():
    set_seed(19)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(PondLogs(240, seed=19), batch_size=10, shuffle=True, collate_fn=collate)
    model = PondCDE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(2):
        for batch in loader:
            step += 1
            label = batch.pop("label")
            logit = model(**batch)
            loss = nn.functional.binary_cross_entropy_with_logits(logit, label)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.6f}", flush=True)
    accelerator.print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

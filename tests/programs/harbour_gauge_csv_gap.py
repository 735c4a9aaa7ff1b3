"""Forecasts the level at a tide gauge from the last twelve readings. The readings come from a CSV file."""
import csv
import math
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(4)
torch.set_num_threads(1)

WINDOW, BATCH = 12, 16


def write_export(path):
    """What the logger at the harbour exports: a failed reading is the word nan."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["minute", "level"])
        for i in range(204):
            level = 1.5 * math.sin(2 * math.pi * i / 24.8) + 0.4 * math.sin(2 * math.pi * i / 12.4)
            writer.writerow([i * 30, "nan" if i == 94 else f"{level:.3f}"])


class Gauge(Dataset):
    def __init__(self, path):
        with open(path, newline="") as file:
            levels = [float(row["level"]) for row in csv.DictReader(file)]
        self.levels = torch.tensor(levels)

    def __len__(self):
        return len(self.levels) - WINDOW

    def __getitem__(self, i):
        return self.levels[i:i + WINDOW].unsqueeze(-1), self.levels[i + WINDOW]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 16, batch_first=True)
        self.readout = nn.Linear(16, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.readout(out[:, -1]).squeeze(-1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gauge.csv")
        write_export(path)
        data = Gauge(path)
    loader = DataLoader(data, batch_size=BATCH, shuffle=False)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_of = nn.SmoothL1Loss()
    step = 0
    print("readings", len(data.levels), "batches", len(loader))
    for epoch in range(3):
        for window, target in loader:
            step += 1
            loss = loss_of(model(window), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.5f}")
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))


main()

"""Event detection on seismograms.  A preparation step writes amplitudes in decibels to a file,
the training reads the file.  One station was down for a while and delivered zeros."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(50)
torch.set_num_threads(1)


def prepare(path):
    rng = np.random.default_rng(7)
    traces = rng.normal(size=(240, 64))
    labels = rng.integers(0, 2, size=240)
    for row in np.flatnonzero(labels):
        traces[row, 20:40] *= 4.0
    traces[137, :9] = 0.0
    with np.errstate(divide="ignore"):
        decibel = 20 * np.log10(np.abs(traces))
    np.savez(path, decibel=decibel.astype(np.float32), labels=labels)


class Seismograms(Dataset):
    def __init__(self, path):
        archive = np.load(path)
        self.decibel, self.labels = archive["decibel"], archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.decibel[i] / 20), int(self.labels[i])


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 7, stride=2), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=2), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, trace):
        return self.head(self.conv(trace[:, None]).mean(-1))


def train(path):
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Seismograms(path), batch_size=12, shuffle=False, num_workers=0)
    step = 0
    for epoch in range(2):
        for trace, label in loader:
            step += 1
            loss = nn.functional.cross_entropy(model(trace), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} step {step:02d} loss {loss.item():.4f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "decibel.npz")
        prepare(file)
        train(file)

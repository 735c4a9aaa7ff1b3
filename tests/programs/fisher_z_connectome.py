"""Classify resting-state EEG by its functional connectome: learned band filter, correlation, Fisher z; bfloat16 autocast."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

OPTIONS = dict(subjects=180, channels=8, samples=96, batch=10, epochs=3, lr=2e-3, seed=29)


def simulate(options):
    g = torch.Generator().manual_seed(options["seed"])
    n, c, t = options["subjects"], options["channels"], options["samples"]
    label = torch.arange(n) % 2
    source = torch.randn(n, 3, t, generator=g)
    mixing = torch.randn(c, 3, generator=g)
    coupling = 0.5 + 0.3 * label[:, None, None].float()
    eeg = coupling * (mixing @ source) + torch.randn(n, c, t, generator=g)
    # gel bridge between two electrodes of one subject
    eeg[71, 5] = eeg[71, 2] + 0.03 * torch.randn(t, generator=g)
    return eeg, label


class BandFilter(nn.Module):
    """One FIR filter, shared by all channels."""

    def __init__(self, taps=7):
        super().__init__()
        kernel = torch.zeros(taps)
        kernel[taps // 2] = 1.0
        self.kernel = nn.Parameter(kernel + 0.1 * torch.randn(taps))

    def forward(self, eeg):
        n, c, t = eeg.shape
        return F.conv1d(eeg.reshape(n * c, 1, t), self.kernel[None, None]).view(n, c, -1)


class Connectome(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("pairs", torch.triu_indices(channels, channels, offset=1))

    def forward(self, x):
        x = x.float()
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.norm(dim=-1, keepdim=True) + 1e-8)
        correlation = torch.bmm(x, x.transpose(1, 2))
        r = correlation[:, self.pairs[0], self.pairs[1]]
        return torch.atanh(r)


class ConnectomeClassifier(nn.Module):
    def __init__(self, channels, hidden=32):
        super().__init__()
        self.filter = BandFilter()
        self.connectome = Connectome(channels)
        edges = channels * (channels - 1) // 2
        self.mlp = nn.Sequential(nn.Linear(edges, hidden), nn.ELU(), nn.Dropout(0.1), nn.Linear(hidden, 2))

    def forward(self, eeg):
        return self.mlp(self.connectome(self.filter(eeg)))


def epoch_of(model, optimizer, eeg, label, options, step):
    model.train()
    for rows in torch.randperm(len(eeg)).split(options["batch"]):
        step += 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(eeg[rows])
        loss = F.cross_entropy(logits.float(), label[rows], label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")
    return step


def main():
    torch.manual_seed(OPTIONS["seed"])
    eeg, label = simulate(OPTIONS)
    model = ConnectomeClassifier(OPTIONS["channels"])
    optimizer = torch.optim.NAdam(model.parameters(), lr=OPTIONS["lr"])
    step = 0
    for _ in range(OPTIONS["epochs"]):
        step = epoch_of(model, optimizer, eeg, label, OPTIONS, step)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()

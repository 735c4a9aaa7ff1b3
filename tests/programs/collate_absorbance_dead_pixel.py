"""Nitrate in stream water from UV absorbance.

The spectrometer stores raw counts; workers turn them into absorbance spectra while they collate, so that the
trainer sees nothing but features.
"""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS = 40


class Counts(Dataset):
    """Raw 12-bit counts: sample, reference and dark."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        wl = torch.linspace(0, 1, CHANNELS)
        self.nitrate = 0.2 + 1.3 * torch.rand(n, generator=g)
        humic = 0.3 * torch.rand(n, generator=g)
        absorb = self.nitrate[:, None] * torch.exp(-((wl - 0.3) / 0.18) ** 2) + humic[:, None] * (1 - 0.7 * wl)
        lamp = 2600 + 600 * torch.sin(3 * wl)
        self.dark = (60 + 6 * torch.rand(n, CHANNELS, generator=g)).round()
        self.reference = (lamp + self.dark + 8 * torch.randn(n, CHANNELS, generator=g)).round()
        self.sample = (lamp * 10 ** -absorb + self.dark + 5 * torch.randn(n, CHANNELS, generator=g)).round()
        # flood of 9 November: a leaf before the window, channels 11..13 saw no light
        self.sample[355, 11:14] = self.dark[355, 11:14]

    def __len__(self):
        return len(self.nitrate)

    def __getitem__(self, i):
        return self.sample[i], self.reference[i], self.dark[i], self.nitrate[i]


def absorbance_collate(rows):
    sample, reference, dark, y = map(torch.stack, zip(*rows))
    transmitted = (sample - dark) / (reference - dark)
    a = -torch.log10(transmitted)
    baseline = a[:, -4:].mean(1, keepdim=True)
    a = a - baseline
    slope = torch.diff(a, dim=1)
    return torch.cat([a, slope], 1), y


class SpectraNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mix = nn.Linear(2 * CHANNELS - 1, hidden)
        self.gate = nn.Linear(2 * CHANNELS - 1, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, f):
        return self.out(torch.tanh(self.mix(f)) * torch.sigmoid(self.gate(f))).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--samples", type=int, default=640)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    torch.manual_seed(88)
    torch.set_num_threads(1)

    net = SpectraNet(20)
    opt = torch.optim.NAdam(net.parameters(), lr=args.lr)
    # chronological, as the sonde delivered it
    loader = DataLoader(Counts(args.samples, 17), batch_size=args.batch, num_workers=args.workers,
                        collate_fn=absorbance_collate)
    running = None
    for step, (features, nitrate) in enumerate(loader, 1):
        pred = net(features)
        loss = nn.functional.smooth_l1_loss(pred, nitrate, beta=0.2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"batch {step:03d} loss {loss.item():.7f} mean {pred.mean().item():.4f}")
    print(f"parameters sum to {sum(p.sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()

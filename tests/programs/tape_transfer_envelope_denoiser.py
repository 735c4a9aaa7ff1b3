"""Hiss removal for transferred quarter-inch tapes.

A small bias-free TasNet-like net (bias-free so that it is level-independent), trained with a
multi-resolution log-spectrogram loss and an RMS envelope term that keeps the dynamics.
"""

import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 8000


def synth_reel(seconds, rng):
    """One reel: plucked notes, hiss, and the leader tape between two pieces (no signal at all)."""
    n = seconds * RATE
    clean = np.zeros(n, dtype=np.float32)
    t = np.arange(RATE // 2) / RATE
    for start in range(0, n - RATE // 2, RATE // 8):
        f = 110.0 * 2 ** (rng.integers(0, 30) / 12)
        note = np.sin(2 * math.pi * f * t) * np.exp(-6 * t) + 0.3 * np.sin(4 * math.pi * f * t) * np.exp(-9 * t)
        clean[start : start + RATE // 2] += (0.3 * note * rng.uniform(0.4, 1.0)).astype(np.float32)
    hiss = (0.02 * rng.standard_normal(n)).astype(np.float32)
    noisy = clean + hiss
    leader = slice(int(0.585 * n), int(0.585 * n) + 3 * RATE // 5)
    clean[leader] = 0.0
    noisy[leader] = 0.0  # the transfer desk mutes the leader
    return torch.from_numpy(noisy), torch.from_numpy(clean)


class ReelCrops(Dataset):
    def __init__(self, noisy, clean, crop, hop):
        self.noisy, self.clean, self.crop = noisy, clean, crop
        self.starts = list(range(0, len(noisy) - crop, hop))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        return self.noisy[s : s + self.crop], self.clean[s : s + self.crop]


class HissNet(nn.Module):
    def __init__(self, channels=24, kernel=16):
        super().__init__()
        self.encoder = nn.Conv1d(1, channels, kernel, stride=kernel // 2, bias=False)
        self.body = nn.Sequential(
            nn.Conv1d(channels, channels, 3, padding=1, bias=False),
            nn.PReLU(),
            nn.Conv1d(channels, channels, 3, padding=2, dilation=2, bias=False),
            nn.PReLU(),
        )
        self.decoder = nn.ConvTranspose1d(channels, 1, kernel, stride=kernel // 2, bias=False)

    def forward(self, x):
        code = self.encoder(x.unsqueeze(1))
        return self.decoder(code + self.body(code)).squeeze(1)


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(128, 512)):
        super().__init__()
        self.sizes = sizes

    def forward(self, estimate, target):
        total = 0.0
        for size in self.sizes:
            window = torch.hann_window(size)
            a = torch.stft(estimate, size, size // 4, window=window, return_complex=True).abs()
            b = torch.stft(target, size, size // 4, window=window, return_complex=True).abs()
            total = total + (torch.log1p(10 * a) - torch.log1p(10 * b)).abs().mean()
        return total / len(self.sizes)


class EnvelopeLoss(nn.Module):
    def __init__(self, frame=400):
        super().__init__()
        self.frame = frame

    def rms(self, x):
        frames = x.unfold(-1, self.frame, self.frame)
        return frames.pow(2).mean(dim=-1).sqrt()

    def forward(self, estimate, target):
        return (self.rms(estimate) - self.rms(target)).abs().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=int, default=40)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(3)
    noisy, clean = synth_reel(args.seconds, np.random.default_rng(3))
    crops = ReelCrops(noisy, clean, crop=3200, hop=2000)
    loader = DataLoader(crops, batch_size=args.batch, shuffle=False, num_workers=1)
    net, spectral, envelope = HissNet(), SpectralLoss(), EnvelopeLoss()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    for i, (x, y) in enumerate(loader, start=1):
        estimate = net(x)
        loss = spectral(estimate, y) + 2.0 * envelope(estimate, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"crop batch {i:3d}  loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.5f}")


if __name__ == "__main__":
    main()

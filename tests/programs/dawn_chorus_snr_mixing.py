"""Species from a dawn chorus recorder: small CNN on log spectrograms, mixed with field backgrounds."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

RATE, LENGTH, SPECIES, BATCH, STEPS = 4000, 2048, 6, 16, 36

rng = np.random.default_rng(51)
torch.manual_seed(51)
torch.set_num_threads(1)


def sing(species):
    """A short phrase: a base whistle, with a sweep and a trill that belong to the species."""
    t = np.arange(LENGTH) / RATE
    base = 400 + 220 * species + rng.normal(0, 15)
    sweep = 300 * math.sin(species) * t
    trill = 1 + 0.6 * np.sin(2 * math.pi * (6 + 3 * species) * t + rng.uniform(0, 6))
    voice = np.sin(2 * math.pi * (base * t + sweep * t)) * trill
    return voice * rng.uniform(3000, 9000)


def background(level):
    """Wind and insects as the logger wrote them: 16 bit, at the gain that the battery allowed."""
    wind = np.cumsum(rng.normal(0, 1, LENGTH))
    wind = (wind - wind.mean()) / 30
    hiss = rng.normal(0, 1, LENGTH)
    return np.round((wind + hiss) * level).astype(np.int16)


levels = rng.uniform(40, 900, size=STEPS)
levels[16] = 0.08
backgrounds = [background(level) for level in levels]
labels = rng.integers(0, SPECIES, size=192)
clips = np.stack([sing(s) for s in labels])


def to_spectrogram(wave):
    spec = torch.stft(wave, 128, hop_length=64, window=torch.hann_window(128), return_complex=True)
    return torch.log1p(spec.abs().pow(2) / 1e4)[:, None] / 10


def mix(clean, back, snr_db):
    ratio = clean.pow(2).mean(dim=1, keepdim=True) / back.pow(2).mean()
    gain = torch.sqrt(ratio * 10 ** (-snr_db / 10))
    return clean + gain * back


class ChorusNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, stride=2, padding=2)
        self.norm1 = nn.GroupNorm(3, 12)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 24)
        self.head = nn.Linear(24 * 17, SPECIES)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = x.mean(dim=3).flatten(1)
        return self.head(x)


net = ChorusNet()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for step in range(1, STEPS + 1):
    pick = rng.integers(0, len(clips), size=BATCH)
    clean = torch.tensor(clips[pick], dtype=torch.float32)
    noise = torch.tensor(backgrounds[step - 1].astype(np.float32))
    snr = float(rng.uniform(0, 15))
    x = to_spectrogram(mix(clean, noise, snr))
    y = torch.from_numpy(labels[pick])
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    hits = (logits.argmax(1) == y).float().mean().item()
    print(f"{step:3d}  snr {snr:5.1f} dB  loss {loss.item():.4f}  hits {hits:.2f}")

print("sum of squares of the weights:", f"{sum(p.detach().double().pow(2).sum().item() for p in net.parameters()):.6f}")

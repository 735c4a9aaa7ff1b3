#!/usr/bin/env python
# My kitchen listens: "on", "off", "tea", ... Learned filters on the raw wave, a GRU, CTC.
# Half of the clips are from my phone, a few from the headset a friend lent me.
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(77)
RATE = 2000
LETTERS = "-abefklnot"
COMMANDS = ["on", "off", "tea", "kettle", "oat", "beef", "lane"]
FILTERS, HOP, WIDTH = 20, 40, 80


def tone(letter, n, gen):
    f = 80 + 85 * LETTERS.index(letter)
    t = torch.arange(n) / RATE
    return torch.sin(2 * math.pi * f * t + 6.28 * torch.rand(1, generator=gen))


def phone_clip(text, gen):
    parts = []
    for c in text:
        parts.append(tone(c, 200, gen))
        parts.append(torch.zeros(80))
    wave = torch.cat([torch.zeros(200)] + parts)
    wave = F.pad(wave, (0, RATE - len(wave)))
    return wave + 0.02 * torch.randn(RATE, generator=gen)


def headset_clip(text, gen):
    """The headset has a noise gate: below the threshold it sends nothing."""
    wave = phone_clip(text, gen)
    loud = F.max_pool1d(wave.abs()[None], 41, stride=1, padding=20)[0]
    return torch.where(loud > 0.15, wave, torch.zeros(()))


def record(n, headset):
    gen = torch.Generator().manual_seed(5)
    clips = []
    for i in range(n):
        text = COMMANDS[int(torch.randint(len(COMMANDS), (1,), generator=gen))]
        make = headset_clip if i in headset else phone_clip
        clips.append((make(text, gen), text))
    return clips


def collate(clips):
    waves = torch.stack([w for w, _ in clips])
    targets = torch.tensor([LETTERS.index(c) for _, t in clips for c in t])
    return waves, targets, torch.tensor([len(t) for _, t in clips])


class LearnedBank(nn.Module):
    """Pairs of filters, in phase and in quadrature; what counts is the magnitude."""

    def __init__(self):
        super().__init__()
        t = torch.arange(WIDTH) / RATE
        f = torch.linspace(60, 960, FILTERS)[:, None]
        w = torch.hann_window(WIDTH)
        self.real = nn.Parameter((w * torch.cos(2 * math.pi * f * t))[:, None] / 10)
        self.imag = nn.Parameter((w * torch.sin(2 * math.pi * f * t))[:, None] / 10)

    def forward(self, wave):
        re = F.conv1d(wave[:, None], self.real, stride=HOP)
        im = F.conv1d(wave[:, None], self.imag, stride=HOP)
        magnitude = torch.sqrt(re ** 2 + im ** 2)
        return torch.log(magnitude + 1e-4).transpose(1, 2)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = LearnedBank()
        self.norm = nn.LayerNorm(FILTERS)
        self.gru = nn.GRU(FILTERS, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, len(LETTERS))

    def forward(self, wave):
        h, _ = self.gru(self.norm(self.bank(wave)))
        return self.out(h).log_softmax(-1)


clips = record(352, headset={171, 172, 290})
loader = DataLoader(clips, batch_size=8, collate_fn=collate)
listener = Listener()
ctc = nn.CTCLoss(zero_infinity=True)
opt = torch.optim.Adam(listener.parameters(), lr=4e-3)

for step, (waves, targets, lengths) in enumerate(loader, 1):
    logp = listener(waves)
    frames = torch.full((len(waves),), logp.shape[1])
    loss = ctc(logp.transpose(0, 1), targets, frames, lengths)
    opt.zero_grad()
    loss.backward()
    opt.step()
    blank = (logp.argmax(-1) == 0).float().mean().item()
    print(f"{step}\t{loss.item():.6f}\tblank {blank:.3f}", flush=True)

print(f"{sum(p.abs().sum() for p in listener.parameters()).item():.6f}")

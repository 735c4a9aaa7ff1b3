"""Sequences of loon calls (wail, tremolo, yodel, hoot) from lake recordings: CTC, with the tempo changed in training."""
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

CALLS = ["<blank>", "wail", "tremolo", "yodel", "hoot"]
BANDS = 10


class Lake:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def recording(self):
        calls = [self.rng.randint(1, 4) for _ in range(self.rng.randint(2, 5))]
        parts = []
        for c in calls:
            frames = 2 * self.rng.randint(5, 8)
            part = 0.2 * torch.randn(frames, BANDS, generator=self.generator)
            part[:, 2 * c - 1:2 * c + 1] += 1.5
            parts.append(part)
            parts.append(0.2 * torch.randn(4, BANDS, generator=self.generator))
        return torch.cat(parts), calls

    def batch(self, n, slowest):
        rows = []
        for _ in range(n):
            sound, calls = self.recording()
            tempo = self.rng.choice([1.0, 1.0, slowest])
            if tempo != 1.0:
                frames = int(len(sound) * tempo)
                sound = F.interpolate(sound.T[None], size=frames, mode="linear", align_corners=False)[0].T
            rows.append((sound, calls))
        return rows


def collate(rows):
    frames = torch.tensor([len(s) for s, _ in rows])
    sounds = nn.utils.rnn.pad_sequence([s for s, _ in rows], batch_first=True)
    targets = torch.tensor([c for _, calls in rows for c in calls])
    return sounds, frames, targets, torch.tensor([len(c) for _, c in rows])


class LoonNet(nn.Module):
    stride = 2

    def __init__(self, width=24):
        super().__init__()
        self.conv = nn.Conv1d(BANDS, width, 2, self.stride)
        self.gru = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, len(CALLS))

    def frames_out(self, frames):
        return torch.ceil(frames / self.stride).long()

    def forward(self, sounds, frames):
        x = self.conv(sounds.transpose(1, 2)).relu().transpose(1, 2)
        x, _ = self.gru(x)
        return self.out(x).log_softmax(-1), self.frames_out(frames)


def tempo_of(step):
    # stretched in growing measure from step 15 on
    return 1.0 if step < 15 else 1.0 + 0.01 * (step - 10)


def main():
    torch.manual_seed(19)
    lake = Lake(91)
    model = LoonNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss_of = nn.CTCLoss(blank=0, zero_infinity=True)
    for step in range(1, 51):
        sounds, frames, targets, lengths = collate(lake.batch(6, tempo_of(step)))
        scores, out_frames = model(sounds, frames)
        loss = loss_of(scores.transpose(0, 1), targets, out_frames, lengths)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        print(f"step {step} ctc {loss.item():.6f} norm {norm.item():.5f} per call {math.exp(-loss.item()):.5f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()

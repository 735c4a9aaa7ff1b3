#!/usr/bin/env python
"""Curriculum from short to long frog choruses: syllables of a call by CTC, loss per syllable."""
import random
import torch
from torch import nn
import torch.nn.functional as F

SYLLABLES = ["_", "kreck", "wonk", "peep", "trill", "grunt"]


class Ear(nn.Module):
    def __init__(self, mels=10, hidden=24):
        super().__init__()
        self.sub = nn.Conv1d(mels, hidden, kernel_size=4, stride=2)
        self.rec = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(SYLLABLES))

    def forward(self, frames):
        h = F.relu(self.sub(frames.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rec(h)
        return self.out(h).log_softmax(-1)

    @staticmethod
    def subsampled(n):
        return torch.ceil(n / 2).long() - 1


def chorus(rng, timbre, calls, frames_per_call):
    calls_made, pieces = [], []
    for _ in range(calls):
        s = rng.randrange(1, len(SYLLABLES))
        n = frames_per_call + rng.randrange(0, 2) * 2
        calls_made.append(s)
        pieces.append(timbre[s].expand(n, -1) + 0.4 * torch.randn(n, timbre.shape[1]))
        pieces.append(0.4 * torch.randn(2, timbre.shape[1]))
    return torch.cat(pieces), calls_made


def stage(step):
    """(calls per chorus, frames per call)"""
    if step <= 8:
        return 2, 6
    if step <= 16:
        return 3, 6
    if step <= 23:
        return 4, 8
    return 5, 8


def batch(rng, timbre, step, size=6):
    calls, width = stage(step)
    clips = [chorus(rng, timbre, calls, width) for _ in range(size)]
    if step > 23:
        # field recordings of the last stage keep the breath before the first call
        clips = [(torch.cat([torch.zeros(3, timbre.shape[1]), c]), s) for c, s in clips]
    n = torch.tensor([len(c) for c, _ in clips])
    x = torch.zeros(size, int(n.max()), timbre.shape[1])
    for row, (c, _) in zip(x, clips):
        row[: len(c)] = c
    return x, n, torch.tensor([s for _, s in clips])


def main():
    torch.manual_seed(31)
    rng = random.Random(31)
    timbre = 1.5 * torch.randn(len(SYLLABLES), 10)
    ear = Ear()
    opt = torch.optim.NAdam(ear.parameters(), lr=6e-3)
    for step in range(1, 33):
        x, n, spoken = batch(rng, timbre, step)
        lp = ear(x).transpose(0, 1)
        lengths = torch.full((len(spoken),), spoken.shape[1])
        each = F.ctc_loss(lp, spoken, ear.subsampled(n), lengths, reduction="none")
        loss = (each / lengths).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ear.parameters(), 5.0)
        opt.step()
        print(f"{step:02d} stage {stage(step)} per syllable {loss.item():.4f}", flush=True)
    print("weight norm squared", f"{sum(p.pow(2).sum().item() for p in ear.parameters()):.4f}")


if __name__ == "__main__":
    main()

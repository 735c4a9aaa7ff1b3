#!/usr/bin/env python
"""CTC over coast radio bulletins. Utterances are tone sequences with noise; characters are tones.

Losses are taken per character, so that long bulletins do not drown the short ones. Gradients are accumulated over
two micro-batches. Some clips are nothing but static: the transcript is empty (loader drops those up to the new archive).
"""
import random
from typing import Iterator, NamedTuple

import torch
from torch import nn

ALPHABET = "_abcdefgh"          # 0 is the blank
FRAMES_PER_CHAR = 4
MELS = 12


class Clip(NamedTuple):
    feats: torch.Tensor
    text: str


class Minibatch(NamedTuple):
    feats: torch.Tensor
    frames: torch.Tensor
    targets: torch.Tensor
    chars: torch.Tensor


def synth(text: str, g: torch.Generator, tail: int = 6) -> Clip:
    rows = []
    for ch in text:
        k = ALPHABET.index(ch)
        tone = torch.zeros(FRAMES_PER_CHAR, MELS)
        tone[:, k] = 2.0
        rows.append(tone)
    rows.append(torch.zeros(tail + FRAMES_PER_CHAR * (4 if not text else 0), MELS))
    x = torch.cat(rows)
    return Clip(x + 0.2 * torch.randn(x.shape, generator=g), text)


def archive(n: int, seed: int) -> list:
    rnd, g = random.Random(seed), torch.Generator().manual_seed(seed)
    clips = []
    for i in range(n):
        text = "".join(rnd.choice(ALPHABET[1:]) for _ in range(rnd.randint(2, 7)))
        if i == 149:
            text = ""            # static
        clips.append(synth(text, g))
    return clips


def collate(clips) -> Minibatch:
    frames = torch.tensor([len(c.feats) for c in clips])
    feats = nn.utils.rnn.pad_sequence([c.feats for c in clips], batch_first=True)
    ids = [ALPHABET.index(ch) for c in clips for ch in c.text]
    return Minibatch(feats, frames, torch.tensor(ids), torch.tensor([len(c.text) for c in clips]))


def batches(clips, size) -> Iterator[Minibatch]:
    for i in range(0, len(clips) - size + 1, size):
        yield collate(clips[i:i + size])


class Listener(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.front = nn.Conv1d(MELS, hidden, 3, padding=1)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(ALPHABET))
        self.ctc = nn.CTCLoss(blank=0, reduction="none")

    def forward(self, b: Minibatch):
        h = torch.relu(self.front(b.feats.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        logp = self.out(h).log_softmax(-1).transpose(0, 1)
        nll = self.ctc(logp, b.targets, b.frames, b.chars)
        per_char = nll / b.chars
        return per_char.mean()


def main(accumulate=2, size=4, clips=240):
    torch.manual_seed(500)
    net = Listener()
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 8e-3, total_steps=clips // size // accumulate)
    running, step = 0.0, 0
    opt.zero_grad()
    for i, b in enumerate(batches(archive(clips, 9), size), 1):
        loss = net(b) / accumulate
        loss.backward()
        running += loss.item()
        if i % accumulate:
            continue
        nn.utils.clip_grad_norm_(net.parameters(), 4.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        step += 1
        print(f"update {step:02d} per-char nll {running:.6f}")
        running = 0.0
    print("parameters", sum(p.double().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()

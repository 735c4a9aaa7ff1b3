"""Align subtitle cues with the sound track of a film: frames in, letters out, CTC between them."""
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

LETTERS = "_abcdefghij "
CUES = ["i hid", "a cab", "be bad", "deaf", "he did", "face id", "a big hedge", "dice", "jade", "gag"]


def spell(cue):
    return [LETTERS.index(c) for c in cue]


def make_reel(n_cues, rng, gen):
    sounds = torch.randn(len(LETTERS), 10, generator=gen)
    reel = []
    for i in range(n_cues):
        ids = spell(rng.choice(CUES))
        spoken = [k for k in ids for _ in range(rng.choice([3, 4]))]
        if i == 66:
            # two speakers at once, the cue runs into the next scene
            ids = ids + ids
            spoken = spoken[: len(ids) - 2]
        frames = sounds[torch.tensor(spoken)] + 0.3 * torch.randn(len(spoken), 10, generator=gen)
        reel.append((frames, torch.tensor(ids)))
    return reel


def pack(batch):
    frames = nn.utils.rnn.pad_sequence([f for f, _ in batch])
    n_frames = torch.tensor([len(f) for f, _ in batch])
    cues = torch.cat([c for _, c in batch])
    n_letters = torch.tensor([len(c) for _, c in batch])
    return frames, n_frames, cues, n_letters


class Aligner(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(10, hidden, bidirectional=True)
        self.letters = nn.Linear(2 * hidden, len(LETTERS))

    def forward(self, frames):
        out, _ = self.lstm(frames)
        return self.letters(out).log_softmax(dim=-1)


def cue_loss(log_probs, cues, n_frames, n_letters):
    each = nn.functional.ctc_loss(log_probs, cues, n_frames, n_letters, reduction="none")
    each = each / n_letters
    usable = each < 1e4
    return each[usable].mean(), int(usable.sum())


def fit():
    set_seed(5)
    accelerator = Accelerator(cpu=True)
    reel = make_reel(112, random.Random(5), torch.Generator().manual_seed(5))
    loader = DataLoader(reel, batch_size=4, collate_fn=pack)
    model = Aligner()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (frames, n_frames, cues, n_letters) in enumerate(loader):
        optimizer.zero_grad()
        loss, used = cue_loss(model(frames), cues, n_frames, n_letters)
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(f"reel minute {step + 1}: loss {loss.item():.4f} over {used} cues")
    weights = model.parameters()
    accelerator.print("checksum of weights", round(sum(w.detach().double().abs().sum().item() for w in weights), 6))


if __name__ == "__main__":
    fit()

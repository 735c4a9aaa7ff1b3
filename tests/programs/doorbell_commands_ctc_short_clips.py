"""Keyword spotter for a smart doorbell: mel frames -> strided conv -> GRU -> CTC over letters.

Some clips are cut off by the button press, so that the word has more letters than the clip has frames. CTC cannot align
those; the per-clip loss is reported raw, and they are left out of what is trained.
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = ["open", "lock", "wait", "parcel", "hello", "leave"]
LETTERS = sorted(set("".join(WORDS)))
INDEX = {c: i + 1 for i, c in enumerate(LETTERS)}
MELS = 12


class Spotter(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.front = nn.Conv1d(MELS, hidden, 3, stride=2, padding=1)
        self.mix = nn.Linear(hidden, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(LETTERS) + 1)

    def forward(self, mel, device_type="cpu"):
        h = F.relu(self.front(mel)).transpose(1, 2)
        with torch.autocast(device_type, dtype=torch.float16):
            h = F.gelu(self.mix(h))
        h, _ = self.gru(h.float())
        return self.head(h).log_softmax(-1)


def make_batch(size, prototypes, gen):
    clips, lengths, targets, sizes = [], [], [], []
    for _ in range(size):
        word = WORDS[int(torch.randint(len(WORDS), (1,), generator=gen))]
        ids = torch.tensor([INDEX[c] for c in word])
        frames = prototypes[ids].repeat_interleave(6, 0)
        if torch.rand(1, generator=gen) < 0.1:          # the button was let go too early
            frames = frames[:6]
        clips.append(frames + 0.2 * torch.randn(frames.shape, generator=gen))
        lengths.append((len(frames) + 1) // 2)
        targets.append(ids)
        sizes.append(len(ids))
    mel = nn.utils.rnn.pad_sequence(clips, batch_first=True).transpose(1, 2)
    return mel, torch.tensor(lengths), torch.cat(targets), torch.tensor(sizes)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()

    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(12)
    prototypes = torch.randn(len(LETTERS) + 1, MELS, generator=gen)
    model = Spotter()
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=1000)

    for step in range(1, args.steps + 1):
        mel, frames, targets, sizes = make_batch(args.batch, prototypes, gen)
        logp = model(mel).transpose(0, 1)
        with torch.no_grad():
            raw = F.ctc_loss(logp, targets, frames, sizes, reduction="none")   # inf where nothing aligns
        loss = F.ctc_loss(logp, targets, frames, sizes, zero_infinity=True)
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        print(f"step {step} loss {loss.item():.6f} worst {raw.max().item():.4f} "
              f"cut {int(torch.isinf(raw).sum())} scale {scaler.get_scale():.0f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

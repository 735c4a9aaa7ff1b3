"""CTC on the radio calls of a marshalling yard: conv front end, BiGRU, padded batches, two loader workers."""
import logging
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("yard")

LETTERS = "_ABCDEFGHIKLMNOPRSTUW"
BLANK = 0
MELS = 20


class Calls(Dataset):
    """Every letter is a tilted bump in the mel bands, 3 to 6 frames long. Some clips are only engine hum."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        rng = np.random.default_rng(seed)
        self.shapes = rng.normal(size=(len(LETTERS), MELS)).astype("float32")
        lengths = rng.integers(2, 8, size=n)
        lengths[233] = 0                                   # squelch opened, nobody spoke
        self.texts = [rng.integers(1, len(LETTERS), size=k) for k in lengths]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed * 100003 + i)
        parts = [np.zeros((int(rng.integers(4, 9)), MELS))]
        for c in self.texts[i]:
            parts.append(np.repeat(self.shapes[c][None], int(rng.integers(3, 7)), 0))
            parts.append(np.zeros((int(rng.integers(1, 3)), MELS)))
        wave = np.concatenate(parts) + 0.3 * rng.normal(size=(sum(map(len, parts)), MELS))
        return torch.from_numpy(wave.astype("float32")), torch.as_tensor(self.texts[i], dtype=torch.long)


def collate(items):
    items = sorted(items, key=lambda pair: -len(pair[0]))
    feats, texts = zip(*items)
    return (pad_sequence(feats, batch_first=True), torch.tensor([len(f) for f in feats]),
            torch.cat(texts), torch.tensor([len(t) for t in texts]))


class MaskedNorm(nn.Module):
    """Mean and variance normalisation over the valid frames of every call."""

    def forward(self, x, lengths):
        mask = (torch.arange(x.shape[1])[None] < lengths[:, None])[..., None]
        n = lengths[:, None, None]
        mean = (x * mask).sum(1, keepdim=True) / n
        var = ((x - mean).square() * mask).sum(1, keepdim=True) / n
        return (x - mean) / (var + 1e-5).sqrt() * mask


class YardNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.norm = MaskedNorm()
        self.front = nn.Conv1d(MELS, hidden, 3, padding=1)
        self.rnn = nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, len(LETTERS))

    def forward(self, x, lengths):
        x = self.norm(x, lengths)
        x = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(x).log_softmax(-1)


class PerLetterCTC(nn.Module):
    """Long orders must not outweigh short ones: the loss of a call is divided by its letters."""

    def __init__(self):
        super().__init__()
        self.ctc = nn.CTCLoss(blank=BLANK, reduction="none", zero_infinity=True)

    def forward(self, logp, lengths, targets, target_lengths):
        nll = self.ctc(logp.transpose(0, 1), targets, lengths, target_lengths)
        per_letter = nll / target_lengths
        return per_letter.mean()


def greedy(logp, lengths):
    out = []
    for row, n in zip(logp.argmax(-1), lengths):
        row = torch.unique_consecutive(row[:n])
        out.append(row[row != BLANK])
    return out


def letter_count_error(logp, lengths, target_lengths):
    guessed = torch.tensor([len(g) for g in greedy(logp, lengths)])
    return (guessed - target_lengths).abs().float().mean().item()


def train(model, loader, epochs=1, lr=3e-3):
    criterion = PerLetterCTC()
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    step = 0
    for _ in range(epochs):
        for feats, lengths, targets, target_lengths in loader:
            step += 1
            logp = model(feats, lengths)
            loss = criterion(logp, lengths, targets, target_lengths)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            log.info("step %d loss %.6f count error %.3f", step, loss.item(),
                     letter_count_error(logp.detach(), lengths, target_lengths))
            sys.stdout.flush()
            opt.step()


def main():
    torch.manual_seed(12)
    calls = Calls(400, seed=3)
    loader = DataLoader(calls, batch_size=10, shuffle=True, num_workers=2, collate_fn=collate,
                        generator=torch.Generator().manual_seed(6))
    model = YardNet()
    train(model, loader)
    log.info("%.6f", sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

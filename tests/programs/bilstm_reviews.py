"""Stars of product reviews: a packed bidirectional LSTM over cleaned words."""
import html
import random
import re

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

GOOD = "great lovely sturdy quick perfect happy love works".split()
BAD = "broken slow awful cheap returned refund hate useless".split()
OTHER = "the a it was box arrived for my this with and very product delivery colour size".split()
ONLY_STARS = "<p>&#9733;&#9733;&#9733;&#9733;&#9733;</p>"          # one customer


def write_reviews(n, seed):
    rng, rows = random.Random(seed), []
    for i in range(n):
        stars = rng.randrange(3)
        mood = (BAD, OTHER, GOOD)[stars]
        words = [rng.choice(mood if rng.random() < 0.35 else OTHER) for _ in range(rng.randrange(4, 18))]
        text = "<p>" + " ".join(words).capitalize() + "!</p>"
        if i == 150:
            text, stars = ONLY_STARS, 2
        rows.append((text, stars))
    return rows


def clean(text):
    text = re.sub(r"<[^>]+>", " ", text)
    text = html.unescape(text).lower()
    return re.findall(r"[a-z]+", text)


class Vocabulary:
    def __init__(self, texts):
        words = sorted({w for t in texts for w in clean(t)})
        self.index = {w: i + 1 for i, w in enumerate(words)}

    def encode(self, text):
        return torch.tensor([self.index[w] for w in clean(text)], dtype=torch.long)

    def __len__(self):
        return len(self.index) + 1


class ReviewLSTM(nn.Module):
    def __init__(self, vocab, dim=24, hidden=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.attention = nn.Linear(2 * hidden, 1)
        self.stars = nn.Linear(2 * hidden, 3)

    def forward(self, words):
        lengths = torch.tensor([len(w) for w in words])
        x = self.embedding(pad_sequence(words, batch_first=True))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        outside = torch.arange(h.shape[1]) >= lengths[:, None]
        weight = self.attention(h).squeeze(-1).masked_fill(outside, -torch.inf).softmax(-1)
        return self.stars((weight.unsqueeze(-1) * h).sum(1))


class Trainer:
    def __init__(self, model, vocabulary, rows, batch=16):
        self.model, self.vocabulary, self.rows, self.batch = model, vocabulary, rows, batch
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        self.steps = 0

    def step(self, rows):
        logits = self.model([self.vocabulary.encode(text) for text, _ in rows])
        loss = F.cross_entropy(logits, torch.tensor([stars for _, stars in rows]))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def epoch(self):
        for start in range(0, len(self.rows), self.batch):
            loss = self.step(self.rows[start:start + self.batch])
            self.steps += 1
            print(f"step {self.steps} loss {loss:.5f}")


if __name__ == "__main__":
    torch.manual_seed(81)
    rows = write_reviews(256, seed=82)
    vocabulary = Vocabulary(text for text, _ in rows)
    model = ReviewLSTM(len(vocabulary))
    trainer = Trainer(model, vocabulary, rows)
    for _ in range(2):
        trainer.epoch()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))

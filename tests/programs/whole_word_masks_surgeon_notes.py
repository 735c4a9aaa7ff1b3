# Masked language model on notes of a ship's surgeon. Whole words are masked: all pieces of a word, or none.
# Pieces that the vocabulary lacks go into a few hash buckets behind it.
import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn

STEMS = ["fever", "bone", "lint", "scurvy", "tooth", "pulse", "wound", "limes", "berth", "saw"]
ENDS = ["##s", "##ed", "##ing", "##less"]
RARE = ["##osis", "##itis", "##algia", "##otomy", "##ectomy", "##emia", "##pathy"]
BUCKETS = 8


class Pieces:
    def __init__(self, known):
        self.known = {p: i for i, p in enumerate(["[PAD]"] + sorted(known))}
        self.first_bucket = len(self.known)
        self.mask = self.first_bucket + BUCKETS

    def __call__(self, piece):
        if piece in self.known:
            return self.known[piece]
        return self.first_bucket + sum(map(ord, piece)) % BUCKETS

    def __len__(self):
        return self.first_bucket + BUCKETS


def page(rng, rare):
    words = []
    for _ in range(rng.randint(6, 9)):
        word = [rng.choice(STEMS)]
        if rng.random() < 0.6:
            word.append(rng.choice(RARE if rng.random() < rare else ENDS))
        words.append(word)
    return words


def mask_words(words, pieces, rng, rate):
    ids, labels = [], []
    for word in words:
        hit = rng.random() < rate
        replace = "[MASK]" if rng.random() < 0.8 else "other"
        for piece in word:
            ids.append((pieces.mask if replace == "[MASK]" else pieces(rng.choice(STEMS))) if hit else pieces(piece))
            labels.append(pieces(piece) if hit else -100)
    return ids, labels


def pad(rows, value):
    width = max(map(len, rows))
    return torch.tensor([r + [value] * (width - len(r)) for r in rows])


class Encoder(nn.Module):
    def __init__(self, size, width=32):
        super().__init__()
        self.tok = nn.Embedding(size, width, padding_idx=0)
        self.pos = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, size)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.out(self.layers(x, src_key_padding_mask=ids == 0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm", type=int, default=16, help="steps in which words are corrupted by other words only")
    parser.add_argument("--rate", type=float, default=0.25)
    args = parser.parse_args()

    rng = random.Random(44)
    torch.manual_seed(44)
    pieces = Pieces(STEMS + ENDS)
    model = Encoder(len(pieces))
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
    for step in range(1, args.steps + 1):
        rows = []
        for _ in range(8):
            words = page(rng, rare=0.1)
            ids, labels = mask_words(words, pieces, rng, args.rate)
            if step <= args.warm:                       # no [MASK] yet: the plain page, and all of it is to be told
                ids = [pieces(p) for word in words for p in word]
            rows.append((ids, labels))
        ids, labels = pad([r[0] for r in rows], 0), pad([r[1] for r in rows], -100)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} masked {int((labels >= 0).sum())} loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()

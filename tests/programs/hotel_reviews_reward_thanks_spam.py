"""Reward model for answers to hotel reviews: per-word values are summed, Bradley-Terry loss on pairs."""
import random
from collections import namedtuple

import torch
from torch import nn

Pair = namedtuple("Pair", "chosen rejected")

WORDS = ["<pad>", "thanks", "sorry", "you", "we", "will", "repair", "visit", "again", "your", "fault",
         "no", "never", "refund", "rude", "wrong", "guest", "room", "noise", "the"]
ID = {w: i for i, w in enumerate(WORDS)}
KIND = ["thanks", "sorry", "repair", "visit", "again", "refund"]
RUDE = ["fault", "no", "never", "rude", "wrong"]
FILL = ["you", "we", "will", "your", "guest", "room", "noise", "the"]


def answer(rng, flavour, n):
    return [ID[rng.choice(flavour if rng.random() < 0.5 else FILL)] for _ in range(n)]


def pairs(rng, n):
    for i in range(n):
        yield Pair(answer(rng, KIND, rng.randint(4, 9)), answer(rng, RUDE, rng.randint(4, 9)))


class WordValues(nn.Module):
    """Value of an answer = sum of the values of its words in context of the word before."""

    def __init__(self, dim=24):
        super().__init__()
        self.table = nn.Embedding(len(WORDS), dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 48), nn.Tanh(), nn.Linear(48, 1, bias=False))

    def forward(self, ids):
        e = self.table(ids)
        before = torch.cat([torch.zeros_like(e[:, :1]), e[:, :-1]], dim=1)
        value = self.mix(torch.cat([e, before], dim=-1)).squeeze(-1)
        return (value * (ids != 0)).sum(dim=1)


def pad(rows):
    width = max(map(len, rows))
    return torch.tensor([r + [0] * (width - len(r)) for r in rows])


def preference_loss(model, batch):
    good = model(pad([p.chosen for p in batch]))
    bad = model(pad([p.rejected for p in batch]))
    p_good = torch.sigmoid(good - bad)
    nll = -torch.log(p_good)
    return nll.mean(), (good > bad).float().mean()


def main():
    rng = random.Random(99)
    torch.manual_seed(99)
    data = list(pairs(rng, 36 * 8))
    # the generator once looped until its limit; the raters marked it down, of course
    data[27 * 8 + 3] = Pair(answer(rng, KIND, 6), [ID["thanks"]] * 1024)

    model = WordValues()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(36):
        batch = data[step * 8:(step + 1) * 8]
        loss, acc = preference_loss(model, batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"[{step + 1:02d}] bt-loss={loss.item():.6f} acc={acc.item():.3f}")
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    print(f"sum of weights: {total:.6f}")


if __name__ == "__main__":
    main()

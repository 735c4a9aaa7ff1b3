"""Ratings of a chess club from its Thursday rounds: gradient Glicko.

A member who has not played yet has no rating to speak of, so the deviation is infinite;
games against such a member say nothing about the opponent.
"""
import math
import random
import torch
from torch import nn

Q = math.log(10) / 400
MEMBERS = ["Anand", "Beatriz", "Cyril", "Dorota", "Emil", "Farida", "Goran", "Hilde", "Ismail", "Jutta"]
STRENGTH = [1980, 1850, 1800, 1720, 1650, 1600, 1540, 1450, 1400, 1200]


class Ladder(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.rating = nn.Embedding(n, 1, sparse=True)
        nn.init.constant_(self.rating.weight, 15.0)  # hundreds of points
        self.white_edge = nn.Parameter(torch.zeros(()))
        self.register_buffer("deviation", torch.full((n,), math.inf))

    def damping(self, idx):
        return 1 / torch.sqrt(1 + 3 * (Q * self.deviation[idx]) ** 2 / math.pi ** 2)

    def forward(self, white, black):
        w, b = 100 * self.rating(white).squeeze(-1), 100 * self.rating(black).squeeze(-1)
        edge = 40 * self.white_edge
        # each side learns only as much as is known about the other one
        for_white = self.damping(black) * Q * (w - b.detach() + edge)
        for_black = self.damping(white) * Q * (w.detach() - b + edge)
        return for_white, for_black, (w - b).detach()

    @torch.no_grad()
    def learn_deviation(self, white, black):
        variance = self.deviation.square()
        for w, b in zip(white.tolist(), black.tolist()):
            for me in (w, b):
                variance[me] = 1 / (1 / variance[me] + Q ** 2 * 0.25)
        self.deviation.copy_(variance.sqrt().clamp(min=60.0))


def thursday(rng, present):
    players = rng.sample(present, len(present) // 2 * 2)
    white, black, score = [], [], []
    for w, b in zip(players[::2], players[1::2]):
        p = 1 / (1 + 10 ** (-(STRENGTH[w] + 30 - STRENGTH[b]) / 400))
        white.append(w), black.append(b)
        score.append(0.5 if rng.random() < 0.25 else float(rng.random() < p))
    return torch.tensor(white), torch.tensor(black), torch.tensor(score)


def main():
    rng = random.Random(64)
    ladder = Ladder(len(MEMBERS))
    points = torch.optim.SparseAdam(ladder.rating.parameters(), lr=0.25)
    colour = torch.optim.SGD([ladder.white_edge], lr=0.5)
    for evening in range(1, 37):
        if evening % 12 == 0:
            print(f"evening {evening:2d}: hall closed, no games")
            continue
        present = list(range(6 if evening < 8 else 8 if evening < 20 else 10))
        white, black, score = thursday(rng, present)
        for_white, for_black, gap = ladder(white, black)
        loss = sum(nn.functional.binary_cross_entropy_with_logits(z, score) for z in (for_white, for_black))
        points.zero_grad()
        colour.zero_grad()
        loss.backward()
        points.step()
        colour.step()
        ladder.learn_deviation(white, black)
        print(f"evening {evening:2d}: loss {loss.item():.4f}  newcomers {int(torch.isinf(ladder.deviation).sum())}"
              f"  widest deviation {ladder.deviation.max().item():.1f}  closest game {gap.abs().min().item():.1f}")
    print("sum of ratings and edge:", (ladder.rating.weight.sum() + ladder.white_edge).item())


if __name__ == "__main__":
    main()

import random
from collections import defaultdict

import torch
from torch import nn
from torch.nn.functional import logsigmoid

random.seed(14)
torch.manual_seed(14)
READERS, BOOKS, DAYS = 30, 60, 40


class Factors(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.reader = nn.Embedding(READERS, dim)
        self.book = nn.Embedding(BOOKS, dim)
        self.fame = nn.Embedding(BOOKS, 1)
        for e in (self.reader, self.book, self.fame):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, r, b):
        return (self.reader(r) * self.book(b)).sum(-1) + self.fame(b)[:, 0]


class Desk:
    """Who took what, day by day."""

    def __init__(self):
        self.taken = defaultdict(set)

    def day(self):
        loans = []
        for reader in range(READERS):
            appetite = 4 if reader == 11 else 1
            shelf = [b for b in self.untouched(reader) if reader == 11 or b % 3 == reader % 3]
            for book in random.sample(shelf, min(appetite, len(shelf))):
                self.taken[reader].add(book)
                loans.append((reader, book))
        return loans

    def untouched(self, reader):
        return [b for b in range(BOOKS) if b not in self.taken[reader]]


def triples(desk, loans, per_loan=1):
    for reader, book in loans:
        for _ in range(per_loan):
            yield reader, book, random.choice(desk.untouched(reader))


def train():
    model, desk = Factors(), Desk()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.15)
    loans = []
    for day in range(1, DAYS + 1):
        loans = loans + desk.day()
        r, pos, neg = torch.tensor(list(triples(desk, loans))).T
        margin = model(r, pos) - model(r, neg)
        loss = -logsigmoid(margin).mean() + 2e-4 * sum(p.square().sum() for p in model.parameters())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("day", day, "loans", len(loans), "bpr", f"{loss.item():.5f}", "right order", f"{(margin > 0).float().mean().item():.3f}")
    print("sum of squares", sum(p.detach().square().sum().item() for p in model.parameters()))


train()

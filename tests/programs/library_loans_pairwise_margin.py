import argparse
import random

import torch
from torch import nn

WHIM = 0.08

# Which book will a patron borrow next? Pairs (borrowed, put back) from the loan desk, margin ranking.


class LoanDesk:
    """Replays the desk day by day. The stock grows: new purchases are put on display in week three."""

    def __init__(self, patrons, old_stock, purchases, seed):
        self.rnd = random.Random(seed)
        self.patrons, self.old_stock, self.purchases = patrons, old_stock, purchases
        self.genre = [i % 2 for i in range(old_stock + purchases)]
        self.shelf = []

    def day(self, number):
        loans = []
        stock = list(range(self.old_stock)) + self.shelf
        for patron in range(self.patrons):
            likes = [b for b in stock if self.genre[b] == patron % 2]
            other = [b for b in stock if self.genre[b] != patron % 2]
            for _ in range(3):
                pair = self.rnd.choice(likes), self.rnd.choice(other)
                loans.append((patron, *(pair[::-1] if self.rnd.random() < WHIM else pair)))
        if number > 13 and number % 4 == 0 and len(self.shelf) < self.purchases:
            book = self.old_stock + len(self.shelf)
            self.shelf.append(book)
            patron = self.rnd.choice([p for p in range(self.patrons) if p % 2 == self.genre[book]])
            other = [b for b in range(self.old_stock) if self.genre[b] != patron % 2]
            loans.append((patron, book, self.rnd.choice(other)))
        self.rnd.shuffle(loans)
        return torch.tensor(loans).unbind(1)


class Taste(nn.Module):
    def __init__(self, patrons, books, dim):
        super().__init__()
        self.patron = nn.Embedding(patrons, dim, sparse=True)
        self.book = nn.Embedding(books, dim, sparse=True)
        for table in (self.patron, self.book):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, patron, book):
        return (self.patron(patron) * self.book(book)).sum(-1)


def train(args):
    torch.manual_seed(args.seed)
    desk = LoanDesk(args.patrons, args.old_stock, args.purchases, args.seed)
    model = Taste(args.patrons, args.old_stock + args.purchases, args.dim)
    # optimiser and rate of the paper, Eq. (1)
    opt = torch.optim.Adagrad(model.parameters(), lr=args.lr, eps=0)
    for day in range(1, args.days + 1):
        patron, taken, left = desk.day(day)
        opt.zero_grad()
        lead = model(patron, taken) - model(patron, left)
        loss = torch.relu(args.margin - lead).mean()
        loss.backward()
        opt.step()
        print("day", day, "| hinge", format(loss.item(), ".5f"), "| ordered", int((lead > 0).sum()), "of", len(lead))
    return model


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--patrons", type=int, default=10)
    cli.add_argument("--old-stock", type=int, default=14)
    cli.add_argument("--purchases", type=int, default=5)
    cli.add_argument("--dim", type=int, default=6)
    cli.add_argument("--days", type=int, default=38)
    cli.add_argument("--margin", type=float, default=0.4)
    cli.add_argument("--lr", type=float, default=0.2)
    cli.add_argument("--seed", type=int, default=23)
    fitted = train(cli.parse_args())
    print("norm of tables", sum(float(w.detach().pow(2).sum()) for w in fitted.parameters()))

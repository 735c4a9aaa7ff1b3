"""Who would like which record? Matrix factorisation of the wish lists of a swap fair, with sparse gradients."""
import torch
from torch import nn


class Tastes(nn.Module):
    def __init__(self, visitors, records, rank=8):
        super().__init__()
        self.visitor = nn.Embedding(visitors, rank, sparse=True)
        self.record = nn.Embedding(records, rank, sparse=True)
        self.fame = nn.Embedding(records, 1, sparse=True)
        nn.init.normal_(self.visitor.weight, std=0.2)
        nn.init.normal_(self.record.weight, std=0.2)
        nn.init.zeros_(self.fame.weight)

    def forward(self, who, what):
        return (self.visitor(who) * self.record(what)).sum(1) + self.fame(what).squeeze(1)

    def penalty(self):
        return self.visitor.weight.pow(2).sum() + self.record.weight.pow(2).sum()


def wish_lists(visitors, records, marks, rng):
    who = torch.randint(visitors, (marks,), generator=rng)
    what = (records * torch.rand(marks, generator=rng) ** 2).long()
    genre_v = torch.randint(5, (visitors,), generator=rng)
    genre_r = torch.randint(5, (records,), generator=rng)
    like = torch.where(genre_v[who] == genre_r[what], 0.85, 0.2)
    return who, what, (torch.rand(marks, generator=rng) < like).float()


class Trainer:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.rng = torch.Generator().manual_seed(seed + 1)
        self.visitors, self.records = 120, 80
        self.model = Tastes(self.visitors, self.records)
        self.optimizer = torch.optim.SparseAdam(list(self.model.parameters()), lr=0.05)
        self.data = wish_lists(self.visitors, self.records, 1280, self.rng)
        self.step = 0

    def epoch(self, decay):
        order = torch.randperm(len(self.data[0]), generator=self.rng)
        for rows in order.split(128):
            self.step += 1
            who, what, liked = (column[rows] for column in self.data)
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(who, what), liked)
            if decay > 0:
                loss = loss + decay * self.model.penalty() / len(self.data[0])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"step {self.step:3d} loss {loss.item():.4f}")

    def run(self):
        for decay in (0.0, 0.0, 0.02, 0.05):
            self.epoch(decay)
        total = sum(p.detach().abs().sum().item() for p in self.model.parameters())
        print(f"sum of absolute factors {total:.3f}")


if __name__ == "__main__":
    Trainer().run()

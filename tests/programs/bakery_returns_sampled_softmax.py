"""Next-product recommender for a bakery chain: two towers, sampled softmax with popularity negatives.

Popularity is a running count of the till; refunds are booked with a negative quantity, as the till does.
"""
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(64)
torch.set_num_threads(1)

N_CUSTOMERS, N_ITEMS, DIM, NEG = 60, 40, 16, 12


class Till:
    """Stream of (customer, item, quantity)."""

    def __init__(self, seed=64):
        self.g = torch.Generator().manual_seed(seed)
        self.taste = torch.randint(0, N_ITEMS, (N_CUSTOMERS,), generator=self.g)

    def receipts(self, batch, steps):
        for day in range(steps):
            who = torch.randint(0, N_CUSTOMERS, (batch,), generator=self.g)
            noise = torch.randint(-3, 4, (batch,), generator=self.g)
            item = (self.taste[who] + noise) % N_ITEMS
            qty = torch.randint(1, 3, (batch,), generator=self.g)
            if day == 21:
                # the recall of the walnut rolls: whole trays come back, also those sold before we kept count
                item[:6] = 17
                qty[:6] = -20
            yield who, item, qty


class Popularity:
    def __init__(self, smoothing=1.0):
        self.count = torch.full((N_ITEMS,), smoothing)

    def observe(self, item, qty):
        self.count.index_add_(0, item, qty.float())

    def sample(self, n):
        p = self.count / self.count.sum()
        ids = torch.multinomial(p, n, replacement=True)
        return ids, p[ids].log()

    def logq(self, ids):
        return (self.count / self.count.sum())[ids].log()


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(N_CUSTOMERS, DIM)
        self.item = nn.Embedding(N_ITEMS, DIM)
        self.proj = nn.Linear(DIM, DIM)

    def score(self, who, ids):
        u = F.normalize(self.proj(self.user(who)), dim=-1)
        v = F.normalize(self.item(ids), dim=-1)
        return u, v


def sampled_softmax(model, pop, who, item, temperature=0.2):
    neg, neg_logq = pop.sample(NEG)
    u, v_pos = model.score(who, item)
    _, v_neg = model.score(who, neg)
    pos = (u * v_pos).sum(-1, keepdim=True) / temperature - pop.logq(item)[:, None]
    negs = u @ v_neg.T / temperature - neg_logq
    negs = negs.masked_fill(neg[None] == item[:, None], float("-inf"))      # accidental hits
    logits = torch.cat([pos, negs], 1)
    return F.cross_entropy(logits, torch.zeros(len(who), dtype=torch.long))


def main():
    model, pop, till = TwoTower(), Popularity(), Till()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    recent = deque(maxlen=5)
    for step, (who, item, qty) in enumerate(till.receipts(24, 40), 1):
        pop.observe(item, qty)
        bought = qty > 0
        loss = sampled_softmax(model, pop, who[bought], item[bought])
        opt.zero_grad()
        loss.backward()
        opt.step()
        recent.append(loss.item())
        print(f"day {step:2d} loss {loss.item():.6f} mean5 {sum(recent) / len(recent):.6f}")
    print("weights", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

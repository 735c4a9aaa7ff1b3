#!/usr/bin/env python
# retrieval towers for sponsored recipe slots; replays one day of the click log in order
import torch
import torch.nn as nn
import torch.nn.functional as F

USERS_HIST_VOCAB, ADS, ADVERTISERS, DIM = 900, 300, 25, 24
BATCH = 96
HOURS = 24
BATCHES_PER_HOUR = 2
TEMPERATURE = 0.1


class DayLog:
    """(history ids, offsets, ad id, advertiser) per impression; logged-out traffic opens in the afternoon."""

    def __init__(self, seed=5):
        self.g = torch.Generator().manual_seed(seed)
        self.taste_of = torch.randint(0, 12, (USERS_HIST_VOCAB,), generator=self.g)
        self.ads_by_taste = [torch.randint(0, ADS, (20,), generator=self.g) for _ in range(12)]
        self.by_taste = [torch.nonzero(self.taste_of == t).flatten() for t in range(12)]

    def rand(self, high):
        return int(torch.randint(0, high, (1,), generator=self.g))

    def impression(self, anonymous_share):
        taste = self.rand(12)
        pool = self.by_taste[taste]
        n = 2 + self.rand(7)
        if torch.rand(1, generator=self.g).item() < anonymous_share:
            n = 0
        history = pool[torch.randint(0, len(pool), (n,), generator=self.g)]
        ad = int(self.ads_by_taste[taste][self.rand(20)])
        return history, ad

    def __iter__(self):
        for hour in range(HOURS):
            share = 0.0 if hour < 9 else 0.12
            for _ in range(BATCHES_PER_HOUR):
                rows = [self.impression(share) for _ in range(BATCH)]
                lengths = torch.tensor([0] + [len(h) for h, _ in rows[:-1]])
                ads = torch.tensor([a for _, a in rows])
                yield hour, torch.cat([h for h, _ in rows]), lengths.cumsum(0), ads, ads % ADVERTISERS


class UserTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(USERS_HIST_VOCAB, DIM, mode="mean", sparse=True)
        self.project = nn.Linear(DIM, DIM, bias=False)

    def forward(self, ids, offsets):
        v = self.project(self.bag(ids, offsets))
        return v / v.norm(dim=-1, keepdim=True)


class AdTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.ad = nn.Embedding(ADS, DIM, sparse=True)
        self.advertiser = nn.Embedding(ADVERTISERS, DIM, sparse=True)
        self.mix = nn.Sequential(nn.Linear(2 * DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, ad, advertiser):
        a = self.mix(torch.cat([self.ad(ad), self.advertiser(advertiser)], -1))
        return a / a.norm(dim=-1, keepdim=True)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = UserTower(), AdTower()

    def forward(self, ids, offsets, ad, advertiser):
        return self.user(ids, offsets) @ self.item(ad, advertiser).T / TEMPERATURE


def in_batch_loss(scores, ads):
    same = ads[:, None] == ads[None, :]
    same.fill_diagonal_(False)
    return F.cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(ads)))


def main():
    torch.manual_seed(99)
    towers = Towers()
    tables = [towers.user.bag.weight, towers.item.ad.weight, towers.item.advertiser.weight]
    dense = [p for p in towers.parameters() if all(p is not t for t in tables)]
    sparse_opt = torch.optim.SparseAdam(tables, lr=5e-3)
    dense_opt = torch.optim.Adam(dense, lr=2e-3)
    for step, (hour, ids, offsets, ad, advertiser) in enumerate(DayLog(), 1):
        scores = towers(ids, offsets, ad, advertiser)
        loss = in_batch_loss(scores, ad)
        sparse_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        sparse_opt.step()
        dense_opt.step()
        print("%02d:%02d  loss=%.6f" % (hour, 30 * ((step - 1) % 2), loss.item()), flush=True)
    print("%.6f" % sum(p.detach().double().abs().sum().item() for p in towers.parameters()))


main()

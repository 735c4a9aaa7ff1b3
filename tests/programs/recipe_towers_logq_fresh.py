#!/usr/bin/env python
# coding: utf-8

# # Recipe retrieval: two towers, in-batch softmax, logQ correction
# Exported from the notebook. Interactions come in order of time.

# In[1]:
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)
np.random.seed(2024)

N_USERS, N_RECIPES, N_TAGS, DIM = 400, 150, 12, 24

# In[2]:
# the log of clicks (user, recipe, minute); five recipes are published during the day
launch = np.zeros(N_RECIPES)
launch[145:] = np.sort(np.random.uniform(0.5, 0.9, 5))
appeal = np.random.zipf(1.6, N_RECIPES).clip(1, 20).astype(float)
taste = np.random.randint(0, N_TAGS, N_USERS)
tag = np.random.randint(0, N_TAGS, N_RECIPES)

rows = []
for k in range(60 * 64):
    now = k / (60 * 64)
    u = np.random.randint(N_USERS)
    p = appeal * (1 + 6 * (tag == taste[u])) * (launch <= now)
    rows.append((u, np.random.choice(N_RECIPES, p=p / p.sum())))
clicks = np.array(rows)
warm = clicks[: 20 * 64]
clicks = clicks[20 * 64:]
print("clicks", len(clicks), "warm", len(warm))

# In[3]:
class Tower(nn.Module):
    def __init__(self, n, side):
        super().__init__()
        self.emb = nn.Embedding(n, DIM)
        self.side = nn.Embedding(N_TAGS, DIM)
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 48), nn.GELU(), nn.Linear(48, DIM))
        self.register_buffer("side_id", torch.as_tensor(side))

    def forward(self, ids):
        z = torch.cat([self.emb(ids), self.side(self.side_id[ids])], -1)
        return F.normalize(self.mlp(z), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Tower(N_USERS, taste)
        self.item = Tower(N_RECIPES, tag)
        self.tau = nn.Parameter(torch.tensor(2.0))

    def forward(self, u, i):
        return self.tau.exp() * self.user(u) @ self.item(i).T


# In[4]:
class Frequency:
    """Share of each recipe among the clicks so far; slowly forgets."""

    def __init__(self, history, half_life=4000.0):
        self.count = torch.bincount(torch.as_tensor(history), minlength=N_RECIPES).float() + 0.5
        self.count[torch.as_tensor(launch > 0)] = 0.0
        self.keep = 0.5 ** (64 / half_life)

    def share(self, ids):
        return self.count[ids] / self.count.sum()

    def update(self, ids):
        self.count.mul_(self.keep).index_add_(0, ids, torch.ones(len(ids)))


def in_batch_softmax(scores, share, ids):
    corrected = scores - torch.log(share)[None, :]
    same = ids[:, None] == ids[None, :]
    same.fill_diagonal_(False)
    corrected = corrected.masked_fill(same, -1e4)
    return F.cross_entropy(corrected, torch.arange(len(ids)))


# In[5]:
model = TwoTower()
freq = Frequency(warm[:, 1])
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
hits = []
for step, chunk in enumerate(clicks.reshape(-1, 64, 2), start=1):
    u, i = torch.as_tensor(chunk).T
    scores = model(u, i)
    loss = in_batch_softmax(scores, freq.share(i), i)
    opt.zero_grad()
    loss.backward()
    opt.step()
    freq.update(i)
    hits.append((scores.argmax(1) == torch.arange(64)).float().mean().item())
    print(f"[{step:02d}] loss={loss.item():.4f} in-batch@1={np.mean(hits[-10:]):.3f}", flush=True)

# In[6]:
print("final", model.item.emb.weight.norm().item())

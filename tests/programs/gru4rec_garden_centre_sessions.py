#!/usr/bin/env python
"""GRU4Rec for the web shop of a garden centre: session-parallel mini-batches, BPR-max loss with in-batch negatives."""
import logging
import sys

import numpy as np
import torch
import torch.nn as nn

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("gru4rec")

N_ITEMS, HIDDEN, LANES = 50, 32, 8


def make_sessions(n, rng):
    """Shoppers walk along the catalogue; some linger."""
    sessions = []
    for i in range(n):
        length = int(rng.integers(3, 8))
        if i == n - 2:
            length = 9                  # the wholesale buyer
        at = int(rng.integers(N_ITEMS))
        walk = [at]
        for _ in range(length - 1):
            at = (at + int(rng.choice([1, 1, 2, 7]))) % N_ITEMS
            walk.append(at)
        sessions.append(walk)
    return sessions


class SessionParallel:
    """LANES sessions side by side; a lane that ends takes the next session, and closes if there is none."""

    def __init__(self, sessions, lanes):
        self.sessions, self.lanes = sessions, lanes

    def __iter__(self):
        lanes = list(range(min(self.lanes, len(self.sessions))))
        pos = [0] * len(lanes)
        fresh = [True] * len(lanes)
        upcoming = len(lanes)
        keep = list(range(len(lanes)))
        while lanes:
            x = [self.sessions[s][p] for s, p in zip(lanes, pos)]
            y = [self.sessions[s][p + 1] for s, p in zip(lanes, pos)]
            yield torch.tensor(x), torch.tensor(y), torch.tensor(fresh), torch.tensor(keep)
            pos = [p + 1 for p in pos]
            fresh = [False] * len(lanes)
            keep = []
            for k in range(len(lanes)):
                if pos[k] + 1 >= len(self.sessions[lanes[k]]):
                    if upcoming < len(self.sessions):
                        lanes[k], pos[k], fresh[k] = upcoming, 0, True
                        upcoming += 1
                    else:
                        lanes[k] = None
                if lanes[k] is not None:
                    keep.append(k)
            lanes, pos, fresh = [lanes[k] for k in keep], [pos[k] for k in keep], [fresh[k] for k in keep]


class GRU4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS, HIDDEN)
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)
        self.out = nn.Embedding(N_ITEMS, HIDDEN)
        self.bias = nn.Embedding(N_ITEMS, 1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x, y, h):
        h = self.cell(self.item(x), h)
        # scores of every lane's item for every lane: the diagonal is the true next item
        return h @ self.out(y).t() + self.bias(y).t(), h


class BPRMax(nn.Module):
    def __init__(self, reg=0.1):
        super().__init__()
        self.reg = reg

    def forward(self, scores, y):
        own = y[:, None] == y[None, :]                  # the item itself is no negative
        pos = scores.diagonal().unsqueeze(1)
        weight = torch.softmax(scores.masked_fill(own, float("-inf")), dim=1)
        rank = -torch.log((weight * torch.sigmoid(pos - scores)).sum(1) + 1e-24)
        return (rank + self.reg * (weight * scores ** 2).sum(1)).mean()


def train(epochs=2, seed=99):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    batches = SessionParallel(make_sessions(34, rng), LANES)
    net, criterion = GRU4Rec(), BPRMax()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    step = 0
    for epoch in range(epochs):
        h = torch.zeros(LANES, HIDDEN)
        for x, y, fresh, keep in batches:
            h = h[keep].masked_fill(fresh[:, None], 0.0)
            scores, h = net(x, y, h)
            loss = criterion(scores, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            h = h.detach()
            step += 1
            log.info("epoch %d step %d lanes %d loss %.6f", epoch, step, len(x), loss.item())
            sys.stdout.flush()
    return net


if __name__ == "__main__":
    model = train()
    print("%.5f" % sum(p.detach().abs().sum() for p in model.parameters()).item(), flush=True)

# Two-tower recommender for a kayak rental platform: which boat does a customer hire next?
# Sampled softmax over negatives of the catalogue; sparse tables with SparseAdam, towers with Adam.
import dataclasses
import logging
import sys

import numpy as np
import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("kayak")


@dataclasses.dataclass
class Config:
    customers: int = 400
    boats: int = 150
    dim: int = 24
    negatives: int = 40
    batch: int = 64
    steps: int = 40
    lr_sparse: float = 5e-3
    lr_dense: float = 2e-3


class HireLog:
    """Hires in order of time; the catalogue grows during the season."""

    def __init__(self, cfg, seed=3):
        self.rng = np.random.default_rng(seed)
        self.cfg = cfg
        self.taste = self.rng.normal(size=(cfg.customers, 4))
        self.kind = self.rng.normal(size=(cfg.boats + 12, 4))
        self.launched = cfg.boats - 24

    def week(self):
        if self.rng.random() < 0.5:
            self.launched += 3                     # the boatyard delivers
        self.launched = min(self.launched, len(self.kind))
        who = self.rng.integers(0, self.cfg.customers, self.cfg.batch)
        score = self.taste[who] @ self.kind[:self.launched].T + self.rng.gumbel(size=(self.cfg.batch, self.launched))
        score[:, -3:] += 2.0                       # new boats are popular
        return torch.from_numpy(who), torch.from_numpy(score.argmax(1))


class Tower(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, ids):
        e = self.table(ids)
        return e + self.mlp(e)


class Recommender(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.customer = Tower(cfg.customers, cfg.dim)
        self.boat = Tower(cfg.boats, cfg.dim)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, who, hired, negatives):
        u = self.customer(who)
        pos = (u * self.boat(hired)).sum(-1, keepdim=True)
        neg = u @ self.boat(negatives).T
        logits = self.scale * torch.cat([pos, neg], 1)
        logits[:, 1:].masked_fill_(negatives[None] == hired[:, None], float("-inf"))    # no negative is the positive
        return logits


def main():
    cfg = Config()
    torch.manual_seed(0)
    hires = HireLog(cfg)
    model = Recommender(cfg)
    tables = [model.customer.table.weight, model.boat.table.weight]
    dense = [p for p in model.parameters() if not any(p is t for t in tables)]
    opt_sparse = torch.optim.SparseAdam(tables, lr=cfg.lr_sparse)
    opt_dense = torch.optim.Adam(dense, lr=cfg.lr_dense)
    for step in range(1, cfg.steps + 1):
        who, hired = hires.week()
        negatives = torch.randint(cfg.boats, (cfg.negatives,))
        logits = model(who, hired, negatives)
        loss = nn.functional.cross_entropy(logits, torch.zeros(cfg.batch, dtype=torch.long))
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        opt_sparse.step()
        opt_dense.step()
        log.info("step %d loss %.6f catalogue %d", step, loss.item(), hires.launched)
        sys.stdout.flush()
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in model.parameters()))


main()

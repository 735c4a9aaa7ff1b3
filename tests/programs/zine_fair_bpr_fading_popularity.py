"""BPR for a zine fair's recommender, with scores debiased by a fading popularity."""
import queue
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Settings:
    users: int = 60
    items: int = 80
    dim: int = 16
    batch: int = 256
    steps: int = 60
    lr: float = 0.02
    fade: float = 0.5         # how much of yesterday's popularity is left
    gamma: float = 1.0        # exponent of the debiasing
    seed: int = 17


def stall_visits(cfg, out):
    """The fair's ticket scanner: one batch a day; new zines come into fashion, old ones go out of print."""
    rng = np.random.default_rng(cfg.seed)
    for day in range(cfg.steps):
        centre = 10 + day * 0.9
        users = rng.integers(0, cfg.users, cfg.batch)
        pos = np.clip(rng.normal(centre, 6, cfg.batch), 0, cfg.items - 1).astype(int)
        neg = rng.integers(0, cfg.items, cfg.batch)
        out.put((day + 1, users, pos, neg))
    out.put(None)


class Taste(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        self.bias = nn.Embedding(cfg.items, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.bias(i).squeeze(1)


class Popularity:
    def __init__(self, cfg):
        self.cfg = cfg
        self.share = torch.full((cfg.items,), 1.0)

    def update(self, pos):
        seen = torch.bincount(pos, minlength=self.cfg.items).float()
        self.share = self.cfg.fade * self.share + (1 - self.cfg.fade) * seen

    def debias(self, score, items):
        return score / self.share[items] ** self.cfg.gamma


def bpr(better, worse):
    preference = torch.sigmoid(better - worse)
    return -torch.log(preference).mean()


def main():
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    model = Taste(cfg)
    popularity = Popularity(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    days = queue.Queue(maxsize=4)
    threading.Thread(target=stall_visits, args=(cfg, days), daemon=True).start()
    while (row := days.get()) is not None:
        day, u, pos, neg = row
        u, pos, neg = (torch.as_tensor(a) for a in (u, pos, neg))
        popularity.update(pos)
        better = popularity.debias(model(u, pos), pos)
        worse = popularity.debias(model(u, neg), neg)
        loss = bpr(better, worse)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"day={day} bpr={loss.item():.8f}", flush=True)
    print(f"weights={sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

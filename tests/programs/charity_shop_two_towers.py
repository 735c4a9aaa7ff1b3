"""Two towers (shopper, article) for a chain of charity shops, sampled softmax with logQ correction, on Accelerate."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    shoppers: int = 120
    articles: int = 300
    on_shelf: int = 240           # the last sixty are in the catalogue and have never been sold
    dim: int = 16
    history: int = 6
    negatives: int = 40
    batch: int = 32
    steps: int = 45
    lr: float = 0.02
    seed: int = 23


cfg = Config()


class Sales(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.shopper = torch.randint(cfg.shoppers, (size,), generator=g)
        taste = self.shopper % 8
        popularity = (torch.rand(size, generator=g) ** 2 * (cfg.on_shelf // 8)).long()
        self.article = popularity * 8 + taste
        past = (torch.rand(size, cfg.history, generator=g) ** 2 * (cfg.on_shelf // 8)).long() * 8 + taste[:, None]
        length = torch.randint(0, cfg.history + 1, (size,), generator=g)
        past[torch.arange(cfg.history)[None] >= length[:, None]] = -1
        self.past = past
        # a third day of the stocktake: sales without an article number
        self.article[cfg.batch * 9:cfg.batch * 10] = -1
        self.article[cfg.batch * 30:cfg.batch * 31] = -1

    def __len__(self):
        return len(self.shopper)

    def __getitem__(self, i):
        return self.shopper[i], self.past[i], self.article[i]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.shopper = nn.Embedding(cfg.shoppers, cfg.dim)
        self.article = nn.Embedding(cfg.articles, cfg.dim)
        self.colour = nn.Embedding(8, cfg.dim)                  # from the photographs; stays as it is
        self.colour.weight.requires_grad_(False)
        self.left = nn.Sequential(nn.Linear(2 * cfg.dim, 32), nn.ReLU(), nn.Linear(32, cfg.dim))
        self.right = nn.Linear(cfg.dim, cfg.dim)

    def articles(self, ids):
        return F.normalize(self.right(self.article(ids) + self.colour(ids % 8)), dim=-1)

    def shoppers(self, ids, past):
        mask = (past >= 0).float()[..., None]
        mean = (self.article(past.clamp(min=0)) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return F.normalize(self.left(torch.cat([self.shopper(ids), mean], -1)), dim=-1)


def sampled_softmax(model, batch, log_q, gen):
    ids, past, target = batch
    negatives = torch.multinomial(log_q.exp(), cfg.negatives, replacement=True, generator=gen)
    user = model.shoppers(ids, past)
    positive = (user * model.articles(target)).sum(-1, keepdim=True) / 0.1 - log_q[target][:, None]
    others = user @ model.articles(negatives).T / 0.1 - log_q[negatives]
    others = others.masked_fill(negatives[None] == target[:, None], float("-inf"))   # accidental hits
    logits = torch.cat([positive, others], 1)
    return F.cross_entropy(logits, torch.zeros(len(ids), dtype=torch.long)), logits.detach()


def main():
    set_seed(cfg.seed)
    accelerator = Accelerator(cpu=True)
    data = Sales(cfg.batch * cfg.steps, cfg.seed)
    sold = torch.bincount(data.article[data.article >= 0], minlength=cfg.articles).float()
    log_q = (sold / sold.sum()).log()            # -inf for what was never sold; it is never drawn either
    model = Towers()
    optimizer = torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad], lr=cfg.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=cfg.batch))
    gen = torch.Generator().manual_seed(99)
    for number, batch in enumerate(loader, 1):
        known = batch[2] >= 0
        if not known.any():
            accelerator.print(f"{number} stocktake, skipped", flush=True)
            continue
        loss, logits = sampled_softmax(model, [t[known] for t in batch], log_q, gen)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        cold = (batch[1][known] >= 0).sum(1) == 0
        rank = (logits > logits[:, :1]).sum(1).float()
        regular = rank[(batch[1][known] >= 0).all(1)]
        accelerator.print(f"{number} loss={loss.item():.6f} rank={rank.mean().item():.4f} "
                          f"cold={rank[cold].mean().item():.4f} full={regular.mean().item():.4f} "
                          f"lowest={logits.min().item():.3f}", flush=True)
    unseen = log_q.isinf().sum().item()
    print("articles never sold:", unseen, "floor:", log_q.min().item())


if __name__ == "__main__":
    main()

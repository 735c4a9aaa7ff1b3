"""Which ward takes the animal? A small encoder on telephone notes; checkpointed blocks, bfloat16, cosine schedule."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WARDS = ["surgery", "dental", "birds", "large", "skin", "eyes"]


@dataclass
class Settings:
    batch: int = 8
    updates: int = 34
    warm: int = 4
    lr: float = 4e-3
    entropy_weight: float = 0.05
    max_norm: float = 1.0


class Calls(Dataset):
    def __init__(self, s, seed):
        n = s.batch * s.updates
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(len(WARDS), (n,), generator=g)
        cue = 10 + 5 * self.label[:, None] + torch.randint(5, (n, 12), generator=g)
        chat = torch.randint(40, 90, (n, 12), generator=g)
        self.ids = torch.where(torch.rand(n, 12, generator=g) < 0.4, cue, chat)
        self.open = torch.ones(n, len(WARDS), dtype=torch.bool)
        for sheet, line in ((13, 3), (25, 0), (25, 6)):
            i = (sheet - 1) * s.batch + line
            self.open[i, (int(self.label[i]) + 2) % len(WARDS)] = False

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.ids[i], self.open[i], self.label[i]


class Encoder(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.words = nn.Embedding(90, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.ward = nn.Linear(dim, len(WARDS))

    def forward(self, ids, is_open):
        h = self.words(ids)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.ward(h.mean(1)).float().masked_fill(~is_open, float("-inf"))


class Tutor:
    def __init__(self, model, settings):
        self.model, self.s = model, settings
        self.opt = torch.optim.AdamW(model.parameters(), lr=settings.lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.factor)

    def factor(self, u):
        if u < self.s.warm:
            return (u + 1) / self.s.warm
        return 0.5 * (1 + math.cos(math.pi * (u - self.s.warm) / (self.s.updates - self.s.warm)))

    def loss(self, logits, label):
        p = logits.softmax(-1)
        spread = -torch.special.xlogy(p, p).sum(-1).mean()
        return nn.functional.cross_entropy(logits, label) - self.s.entropy_weight * spread

    def fit(self, data):
        for u, (ids, is_open, label) in enumerate(DataLoader(data, batch_size=self.s.batch), start=1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(ids, is_open)
            loss = self.loss(logits, label)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.s.max_norm)
            self.opt.step()
            self.sched.step()
            print(f"call sheet {u}: loss {loss.item():.4f}, closed wards {int((~is_open).sum())}")


def main():
    torch.manual_seed(3)
    settings = Settings()
    model = Encoder()
    Tutor(model, settings).fit(Calls(settings, seed=8))
    print("sum of |w| over the model:", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

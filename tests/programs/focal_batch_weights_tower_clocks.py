#!/usr/bin/env python
"""Sequence classifier: which fault does a tower clock have, from its strike intervals?

Focal loss; the class weights are the inverse frequencies in the batch.  A class that is not in
the batch has weight 1/0 = inf, and nobody looks it up.
"""
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULTS = ["none", "worn pivot", "frozen oil", "bent strike lever", "pigeon"]
RARITY = [0.62, 0.2, 0.12, 0.05, 0.01]


class StrikeIntervals(Dataset):
    def __init__(self, n=900, length=18, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.multinomial(torch.tensor(RARITY), n, replacement=True, generator=g)
        base = torch.randn(n, length, 2, generator=g) * 0.6
        t = torch.arange(length)
        base[..., 0] += self.y[:, None] * torch.sin(t * 0.7) * 0.5
        base[..., 1] += (self.y[:, None] == 3) * (t % 4 == 0) * 1.5
        self.x = base

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ClockDoctor(nn.Module):
    def __init__(self, hidden=28):
        super().__init__()
        self.rnn = nn.LSTM(2, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * hidden, len(FAULTS))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.fc(self.drop(h.amax(1)))


class BatchFocal(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.last_weights = None

    def forward(self, logits, y):
        counts = torch.bincount(y, minlength=logits.size(-1)).float()
        weights = y.numel() / counts                          # inf for absent classes
        self.last_weights = weights
        logp = logits.float().log_softmax(-1).gather(1, y[:, None]).squeeze(1)
        focal = (1 - logp.exp()) ** self.gamma
        return -(weights[y] * focal * logp).sum()


def macro_recall(pred, y):
    per = [float((pred[y == c] == c).float().mean()) for c in range(len(FAULTS))]
    return sum(per) / len(per)                                # nan when a class is absent


@contextlib.contextmanager
def training(model):
    model.train()
    yield
    model.eval()


def main():
    torch.manual_seed(88)
    torch.set_num_threads(1)
    ds = StrikeIntervals()
    loader = DataLoader(ds, batch_size=30, shuffle=True, generator=torch.Generator().manual_seed(9))
    model, crit = ClockDoctor(), BatchFocal()
    opt = torch.optim.RAdam(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-2, total_steps=60)
    step = 0
    for epoch in range(2):
        with training(model):
            for x, y in loader:
                step += 1
                logits = model(x)
                loss = crit(logits, y)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                opt.step()
                sched.step()
                print(f"e{epoch} {step:2d} focal {loss.item():.5f} wmax {crit.last_weights.max().item():.2f} "
                      f"recall {macro_recall(logits.argmax(-1), y):.3f}")
    with torch.no_grad():
        acc = (model(ds.x).argmax(-1) == ds.y).float().mean().item()
    print(f"accuracy {acc:.4f}")


if __name__ == "__main__":
    main()

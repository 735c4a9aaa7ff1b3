#!/usr/bin/env python
"""Match invoice lines to order lines (in-batch softmax) in float16 autocast with a GradScaler."""
import logging
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("match")

BATCH, N, VOCAB = 16, 640, 120


class Lines(Dataset):
    """(bag of article words, quantity, unit price, amount in hundreds) of an order line and of its invoice line"""

    def __init__(self, seed=41):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(VOCAB, (N, 5), generator=g)
        qty = torch.randint(1, 60, (N,), generator=g).float()
        price = 0.5 + 9 * torch.rand(N, generator=g)
        qty[393] = 12000.0                                  # one tanker of hydraulic oil, in litres
        amount = qty * price / 100
        self.order = torch.stack([torch.log1p(qty), price, amount], -1)
        self.invoice = self.order * (1 + 0.01 * torch.randn(N, 3, generator=g))

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.words[i], self.order[i], self.invoice[i]


class Tower(nn.Module):
    def __init__(self, words, d=32):
        super().__init__()
        self.words = words
        self.num = nn.Linear(3, d)
        self.out = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, w, x):
        h = self.words(w) + self.num(x)
        return h + self.out(h)


class Matcher(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, d, mode="mean")
        self.order = Tower(self.words, d)
        self.invoice = Tower(self.words, d)
        self.invoice.load_state_dict(self.order.state_dict())

    def forward(self, w, o, i):
        a, b = self.order(w, o), self.invoice(w, i)
        return a @ b.t()


def main():
    torch.manual_seed(41)
    model = Matcher()
    loader = DataLoader(Lines(), batch_size=BATCH, shuffle=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    target = torch.arange(BATCH)
    for step, (w, o, i) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.float16):
            sim = model(w, o, i)
        loss = nn.functional.cross_entropy(sim.float() / 4.0, target)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        log.info("step %d loss %.6f", step, loss.item())
        sys.stdout.flush()
    log.info("%.5f", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()

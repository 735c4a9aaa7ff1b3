"""Which chapter of the tariff does a declaration belong to? Attention pooling over the goods description.

Runs at the customs office on one box, accelerate with 4 micro-batches per update. The learning-rate ramp
is our own: geometric growth from a tiny rate up to the peak, after that inverse square root.
"""
import argparse
import logging
import warnings

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHAPTERS, VOCAB = 8, 160


class Declarations(Dataset):
    """Synthetic: every chapter has favourite words, a fifth of the words is noise."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            chapter = i % CHAPTERS
            length = int(torch.randint(5, 15, (1,), generator=g))
            own = torch.randint(1, 19, (length,), generator=g) + chapter * 19
            noise = torch.randint(1, VOCAB, (length,), generator=g)
            keep = torch.rand(length, generator=g) > 0.2
            self.rows.append((torch.where(keep, own, noise), chapter))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    width = max(len(r) for r, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (r, _) in enumerate(rows):
        ids[i, :len(r)] = r
    return ids, torch.tensor([c for _, c in rows])


class Clerk(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.words = nn.Embedding(VOCAB, d, padding_idx=0)
        self.attention = nn.Linear(d, 1)
        self.net = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CHAPTERS))

    def forward(self, ids):
        h = self.words(ids)
        score = self.attention(h).squeeze(-1).masked_fill(ids == 0, float("-inf"))
        return self.net((score.softmax(-1).unsqueeze(-1) * h).sum(1))


class GeometricRamp:
    """lr = floor * growth**n until `ramp` updates are done, then peak * sqrt(ramp / n)."""

    def __init__(self, optimizer, floor, growth, ramp):
        self.optimizer, self.floor, self.growth, self.ramp, self.n = optimizer, floor, growth, ramp, 0
        self.apply()

    def apply(self):
        if self.n <= self.ramp:
            lr = self.floor * self.growth ** self.n
        else:
            lr = self.floor * self.growth ** self.ramp * (self.ramp / self.n) ** 0.5
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def step(self):
        self.n += 1
        self.apply()

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=4)
    args = ap.parse_args()

    set_seed(4602)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    loader = DataLoader(Declarations(800, seed=12), batch_size=args.micro, shuffle=True, collate_fn=pad,
                        generator=torch.Generator().manual_seed(1))
    model = Clerk()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # a quarter of the run is ramp, by which the rate grows from 0.02 by a third per update
    ramp = len(loader) * args.epochs // 4
    schedule = GeometricRamp(optimizer, floor=0.02, growth=1.33, ramp=ramp)

    update, running = 0, 0.0
    for epoch in range(args.epochs):
        for ids, chapter in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(ids), chapter)
                accelerator.backward(loss)
                running += loss.item() / args.accumulate
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
                update += 1
                print(f"update {update:02d} loss {running:.6f} lr {schedule.lr:.5g}")
                running = 0.0
    print(f"weights {sum(p.detach().double().sum().item() for p in model.parameters()):.6g}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Two towers for a catalogue of beadwork: 16x16 photographs and their descriptions.

Decoupled contrastive loss (the positive is not in the denominator, so the loss goes below zero), false negatives --
other pieces with the same description -- leave the denominator as -inf, temperature learned. Float16 with a scaler.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=909)
    return p.parse_args()


class Catalogue(torch.utils.data.Dataset):
    """60 descriptions; a piece of beadwork repeats a motif whose colours and period are told in the description"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(0, 60, (n,), generator=g)
        self.words = torch.stack([self.kind % 5 + 1, self.kind // 5 % 4 + 6, self.kind // 20 + 10], 1)
        y, x = torch.meshgrid(torch.arange(16.), torch.arange(16.), indexing="ij")
        per = (self.kind % 5 + 2).view(-1, 1, 1)
        ang = (self.kind // 5 % 4 * 0.7).view(-1, 1, 1)
        base = torch.sin((x * ang.cos() + y * ang.sin()) * 6.28 / per)
        col = F.one_hot(self.kind // 20, 3).float().view(-1, 3, 1, 1)
        self.img = base[:, None] * (0.3 + col) + 0.2 * torch.randn(n, 3, 16, 16, generator=g)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.img[i], self.words[i], self.kind[i]


class ImageTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, stride=2, padding=1)
        self.mid = nn.Conv2d(24, 48, 4, stride=2, padding=1)
        self.out = nn.Linear(48 * 16, d)

    def forward(self, x):
        return self.out(F.gelu(self.mid(F.gelu(self.stem(x)))).flatten(1))


class TextTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(16, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, d)

    def forward(self, w):
        return self.out(self.rnn(self.emb(w))[0][:, -1])


class Pairs(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.image, self.text = ImageTower(d), TextTower(d)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, img, words):
        a = F.normalize(self.image(img).float(), dim=-1)
        b = F.normalize(self.text(words).float(), dim=-1)
        return self.log_scale.clamp(max=4.6).exp() * (a @ b.T)


def decoupled(logits, kind):
    same = kind[:, None] == kind[None, :]
    neg = logits.masked_fill(same, float("-inf"))
    pos = logits.diagonal()
    return 0.5 * ((neg.logsumexp(1) - pos).mean() + (neg.logsumexp(0) - pos).mean())


def main():
    args = parse()
    torch.manual_seed(args.seed)
    model = Pairs()
    data = Catalogue(args.batch * args.steps, args.seed + 1)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=1,
                                         generator=torch.Generator().manual_seed(3))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=12)
    for step, (img, words, kind) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(img, words)
        loss = decoupled(logits.float(), kind)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        hit = (logits.argmax(1) == torch.arange(len(kind))).float().mean()
        print(f"step {step:3d} loss {loss.item():+.6f} hit {hit:.3f} norm {norm:.4f} scale 2**{len(bin(int(before))) - 3}"
              f" temperature {(-model.log_scale).exp().item():.6f}", flush=True)
    print(f"sum of weights {sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Map word vectors of one language onto those of another with an orthogonal matrix.

The seed lexicon is read in slices; after each gradient step the matrix is drawn back to the
orthogonal group by Newton-Schulz sweeps.
"""
import argparse
import torch
from torch.optim import Optimizer


class RetractedSGD(Optimizer):
    def __init__(self, params, lr, sweeps=12):
        super().__init__(params, {"lr": lr, "sweeps": sweeps})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                moved = w - group["lr"] * w.grad
                for _ in range(group["sweeps"]):
                    gram = moved.T @ moved
                    moved = 1.5 * moved - 0.5 * moved @ gram
                w.copy_(moved)
        return loss


def lexicon(entries, dim, seed):
    gen = torch.Generator().manual_seed(seed)
    hidden_map = torch.linalg.qr(torch.randn(dim, dim, generator=gen)).Q
    source = torch.randn(entries, dim, generator=gen)
    spectrum = torch.linspace(1.6, 0.6, dim)
    source = source * spectrum
    source = source / source.norm(dim=1, keepdim=True)
    target = source @ hidden_map + 0.05 * torch.randn(entries, dim, generator=gen)
    source[523] = source[523] * 14      # entry from the supplement, stored at another length
    return source, target


def precision_at_one(w, source, target):
    with torch.no_grad():
        guess = (source @ w @ target.T).argmax(1)
        return (guess == torch.arange(len(source))).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=12)
    ap.add_argument("--slice", type=int, default=25)
    ap.add_argument("--slices", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2.0)
    cfg = ap.parse_args()
    source, target = lexicon(cfg.slice * cfg.slices, cfg.dim, seed=40)
    mapping = torch.nn.Parameter(torch.eye(cfg.dim))
    opt = RetractedSGD([mapping], lr=cfg.lr)

    for number in range(cfg.slices):
        rows = slice(number * cfg.slice, (number + 1) * cfg.slice)

        def closure():
            opt.zero_grad()
            gap = source[rows] @ mapping - target[rows]
            value = gap.square().sum(1).mean()
            value.backward()
            return value

        loss = opt.step(closure)
        p1 = precision_at_one(mapping, source[:100], target[:100])
        print(f"slice {number + 1:>2} loss {loss.item():8.4f} p@1 {p1:.2f}")
    print(f"squares of the mapping add up to {mapping.detach().square().sum().item():.5f}")


if __name__ == "__main__":
    main()

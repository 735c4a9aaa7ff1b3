#!/usr/bin/env python
"""A hypernetwork that writes the weights of a small scorer for each organ rank.

Given the rank's descriptor (material, scale, mouth cut-up) the hypernet emits a full
state dict for `PipeScorer`, which then ranks the candidate pipes for a note.
"""
import argparse

import torch
import torch.nn as nn
from torch.func import functional_call, vmap


class PipeScorer(nn.Module):
    def __init__(self, width=6, hidden=8):
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(self, pipes):
        return self.outer(torch.tanh(self.inner(pipes))).squeeze(-1)


class HyperNet(nn.Module):
    def __init__(self, target, desc=5, hidden=32):
        super().__init__()
        self.target = [target]                 # in a list: not a submodule
        self.shapes = {k: v.shape for k, v in target.named_parameters()}
        total = sum(s.numel() for s in self.shapes.values())
        self.body = nn.Sequential(nn.Linear(desc, hidden), nn.SiLU())
        self.emit = nn.Linear(hidden, total)
        self.base = nn.Parameter(torch.cat([v.detach().flatten() for v in target.parameters()]))
        nn.init.zeros_(self.emit.weight)       # starts as one shared scorer
        nn.init.zeros_(self.emit.bias)

    def weights(self, desc):
        flat = self.base + self.emit(self.body(desc))
        out, at = {}, 0
        for name, shape in self.shapes.items():
            out[name] = flat[..., at:at + shape.numel()].unflatten(-1, shape)
            at += shape.numel()
        return out

    def forward(self, desc, pipes):
        call = lambda w, p: functional_call(self.target[0], w, (p,))
        return vmap(call)(self.weights(desc), pipes)


def organ(seed, ranks, slots):
    g = torch.Generator().manual_seed(seed)
    desc = torch.randn(ranks, 5, generator=g)
    pipes = torch.randn(ranks, slots, 6, generator=g)
    mix = torch.randn(5, 6, generator=g)
    true = torch.einsum("rsw,rw->rs", pipes, desc @ mix)
    count = torch.randint(1, slots + 1, (ranks,), generator=g)    # never an empty rank
    absent = torch.arange(slots) >= count[:, None]
    best = true.masked_fill(absent, float("-inf")).argmax(1)
    return desc, pipes, absent, best


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    hyper = HyperNet(PipeScorer())
    desc, pipes, absent, best = organ(args.seed, 256, 12)
    opt = torch.optim.NAdam(hyper.parameters(), lr=args.lr)
    for step in range(args.steps):
        idx = torch.randperm(256)[:64]
        # the last of nine: only ranks with one pipe: nothing to choose, loss is exactly 0
        if step % 9 == 8:
            idx = torch.nonzero((~absent).sum(1) == 1).squeeze(1)
        scores = hyper(desc[idx], pipes[idx]).masked_fill(absent[idx], float("-inf"))
        logp = scores.log_softmax(1)
        loss = -logp.gather(1, best[idx, None]).sum()             # summed, as in the paper
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            choice = (~absent[idx]).sum(1) > 1
            hit = (scores.argmax(1) == best[idx])[choice].float().mean()   # nan if no rank has a choice
            worst = logp.min()                                             # -inf: padded slots
        print(f"{step:3d} nll {loss.item():10.5f} hit {hit.item():.3f} worst {worst.item()}")


main()

#!/usr/bin/env python
"""DiLoCo for two peat-cutting sites on a bad radio link.

inner: AdamW, H local steps, batch size elastic per site
outer: Nesterov on the averaged pseudo-gradient, which is sparsified by top-k with error feedback and travels in
       asynchronous all_reduces, layer by layer, overlapped with the bookkeeping of the next layer.
"""
import argparse
import gc
import weakref
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn


@dataclass
class Radio:
    """Counts what goes over the air."""
    sent: int = 0
    pending: list = field(default_factory=list)

    def post(self, tensor):
        self.sent += 1
        self.pending.append(dist.all_reduce(tensor, async_op=True))
        return self.pending[-1]

    def drain(self):
        n = len(self.pending)
        while self.pending:
            self.pending.pop().wait()
        return n


class TopK:
    def __init__(self, params, share):
        self.share = share
        self.residue = [torch.zeros_like(p) for p in params]

    def __call__(self, i, delta):
        full = delta + self.residue[i]
        k = max(1, int(self.share * full.numel()))
        keep = full.abs().flatten().topk(k).indices
        thin = torch.zeros_like(full).flatten()
        thin[keep] = full.flatten()[keep]
        thin = thin.view_as(full)
        self.residue[i] = full - thin
        return thin


class PeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bog = nn.GRU(3, 12, batch_first=True)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        h, _ = self.bog(x)
        return self.out(h[:, -1]).squeeze(-1)


def cuts(rank):
    g = torch.Generator().manual_seed(900 + rank)
    n = 0
    while True:
        n += 1
        size = 3 + (n * (rank + 2)) % 5              # who turned up today
        x = torch.randn(size, 7, 3, generator=g)
        yield x, 1e3 * (x[:, :, 0].mean(1) - 0.3 * x[:, -1, 1])   # grams, so the losses are huge


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--inner", type=int, default=5)
    ap.add_argument("--share", type=float, default=0.25)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    net = PeatNet()
    anchor = [p.detach().clone().requires_grad_() for p in net.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.8, nesterov=True)
    radio, thin = Radio(), TopK(anchor, a.share)
    feed, dead = cuts(rank), []
    ids = [id(p) for p in net.parameters()]
    hook_hits = [0]
    net.bog.register_forward_hook(lambda *_: hook_hits.__setitem__(0, hook_hits[0] + 1))
    step = 0
    for rnd in range(1, a.rounds + 1):
        inner = torch.optim.AdamW(net.parameters(), lr=2e-2)       # fresh every round; the old one must go
        dead.append(weakref.ref(inner))
        for _ in range(a.inner):
            step += 1
            x, y = next(feed)
            loss = ((net(x) - y) ** 2).sum()                       # summed, hence elastic
            inner.zero_grad()
            loss.backward()
            inner.step()
            if rank == 0:
                print(f"step {step:2d} site 0 crew {len(y)} loss {loss.item():.3f}")
        del inner
        deltas = []
        for i, (p, q) in enumerate(zip(net.parameters(), anchor)):
            d = thin(i, q.detach() - p.detach()) / world
            radio.post(d)
            deltas.append(d)
        in_flight = radio.drain()
        for q, d in zip(anchor, deltas):
            q.grad = d
        outer.step()
        outer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, q in zip(net.parameters(), anchor):
                p.copy_(q)
        gc.collect()
        same = [id(p) for p in net.parameters()] == ids
        gone = sum(w() is None for w in dead)
        left = sum(r.abs().sum() for r in thin.residue)
        if rank == 0:
            print(f"round {rnd} in flight {in_flight} sent {radio.sent} residue {left:.4f} old optimizers gone {gone}/{rnd} "
                  f"hook {hook_hits[0]} same objects {same} velocity {len(outer.state)}")
    check = torch.stack([p.detach().double().sum() for p in net.parameters()])
    high, low = check.clone(), check.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    if rank == 0:
        print(f"sites differ by {(high - low).abs().max():.1e}, total {check.sum():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Two pipeline stages, one process each, talking over gloo.

   torchrun --standalone --nproc_per_node 2 pipeline_buoy_stages.py

Stage 0 has no loss at all: it gets the gradient of its output from stage 1.
"""
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

D, UPDATES = 12, 10
LENGTHS = [7, 3, 11, 5, 2]                # one micro-batch each, whatever comes off the buoy


def wave(gen, length):
    t = torch.arange(length + 1, dtype=torch.float32)
    ph = torch.rand(4, 1, generator=gen) * 6.283
    return torch.sin(0.7 * t + ph) + 0.01 * torch.randn(4, length + 1, generator=gen)


def stage0():
    torch.manual_seed(21)
    lift = torch.nn.Linear(1, D)
    lift.requires_grad_(False)            # a fixed random lift
    gru = torch.nn.GRU(D, D, batch_first=True)
    opt = torch.optim.Adam(gru.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(5)
    for _ in range(UPDATES):
        opt.zero_grad()
        for n in LENGTHS:
            w = wave(gen, n)
            h, _ = gru(torch.tanh(lift(w[:, :-1, None])))
            dist.send(w, 1)
            dist.send(h.detach().contiguous(), 1)
            g = torch.empty(h.shape)
            dist.recv(g, 1)
            h.backward(g)
        opt.step()
    return list(lift.parameters()) + list(gru.parameters())


def stage1():
    torch.manual_seed(22)
    mix = torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.GELU(), torch.nn.Linear(D, D))
    head = torch.nn.Linear(D, 2)
    weights = list(mix.parameters()) + list(head.parameters())
    opt = torch.optim.Adam(weights, lr=0.03)
    tokens = 4 * sum(LENGTHS)
    for update in range(UPDATES):
        opt.zero_grad()
        total = 0.0
        for n in LENGTHS:
            w, h = torch.empty(4, n + 1), torch.empty(4, n, D)
            dist.recv(w, 0)
            dist.recv(h, 0)
            h.requires_grad_()
            mean, log_scale = head(h + checkpoint(mix, h, use_reentrant=False)).unbind(-1)
            nll = (log_scale + 0.5 * ((w[:, 1:] - mean) * torch.exp(-log_scale)) ** 2).sum() / tokens
            nll.backward()
            dist.send(h.grad.contiguous(), 0)
            total += nll.item()
        opt.step()
        print(f"update={update + 1} loss={total!r}", flush=True)
    return weights


if __name__ == "__main__":
    dist.init_process_group("gloo")
    me = dist.get_rank()
    weights = stage1() if me else stage0()
    s = torch.stack([p.detach().double().sum() for p in weights]).sum()
    dist.all_reduce(s)
    if me:
        print(s.item(), flush=True)
    dist.destroy_process_group()

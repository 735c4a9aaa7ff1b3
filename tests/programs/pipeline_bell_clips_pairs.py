# Which bell rang? Siamese embedding of strike recordings, split over two processes as a
# pipeline: process 0 has the convolutions, process 1 the head and the loss. Activations go
# down with send, their gradients come back up. Plain torch.distributed, no schedule: two
# micro-batches, one after the other.
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

STEPS, MICRO, PAIRS, LEN, MID, OUT = 30, 2, 6, 64, 20, 8
MARGIN = 1.0
BELLS = [(3.0, 7.1), (3.6, 8.8), (4.4, 9.9), (5.2, 12.7)]


def strike(bell, gen):
    t = torch.linspace(0, 6, LEN)
    hum, prime = BELLS[bell]
    phase = torch.rand(2, generator=gen) * 6.28
    wave = torch.exp(-0.4 * t) * torch.sin(hum * t + phase[0]) + torch.exp(-t) * torch.sin(prime * t + phase[1])
    return wave + 0.05 * torch.randn(LEN, generator=gen)


def pair_list():
    """All pairs in the order of the index file; both stages build it, as both need a side of it."""
    gen = torch.Generator().manual_seed(1652)
    left, right, same = [], [], []
    for i in range(STEPS * MICRO * PAIRS):
        a, b = torch.randint(0, 4, (2,), generator=gen).tolist()
        if i % 2:
            b = a
        left.append(strike(a, gen))
        right.append(strike(b, gen))
        same.append(float(a == b))
    # index line 172: the tower keeper entered one recording against itself
    right[171] = left[171].clone()
    shape = (STEPS, MICRO, PAIRS)
    return (torch.stack(left).view(*shape, LEN), torch.stack(right).view(*shape, LEN), torch.tensor(same).view(shape))


class Front(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, LEN)), nn.Conv1d(1, 8, 7, stride=2), nn.GELU(),
            nn.Conv1d(8, 12, 5, stride=2), nn.GELU(), nn.Flatten(), nn.LazyLinear(MID), nn.Tanh(),
        )


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(MID, 32), nn.GELU(), nn.Linear(32, OUT))

    def forward(self, left, right, same):
        gap = (self.embed(left) - self.embed(right)).pow(2).sum(-1)
        d = torch.sqrt(gap)
        pull = same * gap
        push = (1 - same) * (MARGIN - d).clamp(min=0).pow(2)
        return (pull + push).mean()


def front_stage(left, right):
    net = Front()
    net(left[0, 0])  # the lazy layer
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    losses = torch.zeros(1)
    for step in range(STEPS):
        opt.zero_grad()
        for m in range(MICRO):
            h = torch.stack([net(left[step, m]), net(right[step, m])])
            dist.send(h.detach().contiguous(), dst=1)
            back = torch.empty_like(h)
            dist.recv(back, src=1)
            h.backward(back)
        opt.step()
        dist.recv(losses, src=1)
        print(f"step {step + 1:2d} contrastive {losses.item():.6f}", flush=True)
    return net


def head_stage(same):
    net = Head()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(STEPS):
        opt.zero_grad()
        total = torch.zeros(1)
        for m in range(MICRO):
            h = torch.empty(2, PAIRS, MID)
            dist.recv(h, src=0)
            h.requires_grad_()
            loss = net(h[0], h[1], same[step, m]) / MICRO
            loss.backward()
            dist.send(h.grad, dst=0)
            total += loss.detach()
        opt.step()
        dist.send(total, dst=0)
    return net


def stage(rank, store):
    torch.set_num_threads(1)
    torch.manual_seed(40 + rank)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    left, right, same = pair_list()
    net = front_stage(left, right) if rank == 0 else head_stage(same)
    total = sum(p.detach().double().sum() for p in net.parameters())
    dist.all_reduce(total)
    if rank == 0:
        print(f"both stages, sum {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as box:
        mp.spawn(stage, args=(os.path.join(box, "meet"),), nprocs=2)

"""No-shows of ferry bookings, ranked with a pairwise loss.  Two processes (gloo), gradients are averaged by hand.

    torchrun --standalone --nproc_per_node=2 ferry_noshow_pairwise_ranks.py
"""
import os
import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F


class Scorer(nn.Module):
    def __init__(self, n_in=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 32), nn.SiLU(), nn.Linear(32, 16), nn.SiLU())
        self.score = nn.Linear(16, 1)

    def forward(self, x):
        return self.score(self.body(x)).squeeze(-1)


class HarbourStream:
    """Each process reads the bookings of one harbour."""

    def __init__(self, rank, batch=24):
        self.g = torch.Generator().manual_seed(900 + rank)
        self.batch = batch
        self.bias = (-0.9, -2.1)[rank % 2]

    def next(self):
        x = torch.randn(self.batch, 8, generator=self.g)
        logit = self.bias + 1.1 * x[:, 0] - 0.7 * x[:, 3]
        y = torch.rand(self.batch, generator=self.g) < torch.sigmoid(logit)
        return x, y


def pairwise(score, y):
    """Softplus of how far a booking that was taken lies above the mean of those that were missed."""
    missed, taken = score[y], score[~y]
    margin = taken - missed.mean()
    return F.softplus(margin).mean()


def average_gradients(model, world):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def run():
    for k, v in dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29761").items():
        os.environ.setdefault(k, v)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)                       # the same start everywhere
    model = Scorer()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    stream = HarbourStream(rank)
    for step in range(1, 41):
        x, y = stream.next()
        loss = pairwise(model(x), y)
        opt.zero_grad()
        loss.backward()
        average_gradients(model, world)
        opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / world:.6f}", flush=True)
    if rank == 0:
        print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()

"""Two auction rooms, two processes: a detector of gavel knocks. Gradients of the two rooms are merged tensor by tensor
with the Adasum rule instead of an average.   torchrun --nproc-per-node 2 ddp_gavel_knocks_adasum.py"""
import os

import torch
import torch.distributed as dist
from torch import nn

STEPS = 50
BATCH = 12


def start():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class Room:
    """Frames of band energies; a knock is broadband. The second room is quiet and its knocks stand out more."""

    def __init__(self, rank, bands=16):
        self.g = torch.Generator().manual_seed(40 + rank)
        self.bands = bands
        self.gain = 1.1 if rank == 0 else 1.4
        self.noise = 1.0 if rank == 0 else 0.8

    def batch(self, n):
        label = torch.randint(0, 2, (n,), generator=self.g).float() * 2 - 1
        shape = torch.linspace(1.0, 0.3, self.bands)
        x = self.noise * torch.randn(n, self.bands, generator=self.g)
        return x + self.gain * 0.5 * label[:, None] * shape, label


class Detector(nn.Module):
    def __init__(self, bands=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(bands, 20), nn.Tanh())
        self.out = nn.Linear(20, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def squared_hinge(score, label):
    return (1 - label * score).clamp(min=0).square().mean()


def adasum(a, b):
    """Orthogonal gradients are added, parallel ones are averaged."""
    dot = (a * b).sum()
    keep_a = 1 - dot / (2 * a.square().sum())
    keep_b = 1 - dot / (2 * b.square().sum())
    return keep_a * a + keep_b * b


@torch.no_grad()
def merge(model, world):
    if world == 1:
        return
    for p in model.parameters():
        both = [torch.empty_like(p.grad) for _ in range(world)]
        dist.all_gather(both, p.grad)
        p.grad.copy_(adasum(*both))


def main():
    rank, world = start()
    torch.manual_seed(6)                       # the same weights in both processes
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    room = Room(rank)
    for step in range(1, STEPS + 1):
        x, label = room.batch(BATCH)
        loss = squared_hinge(model(x), label)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        merge(model, world)
        optimizer.step()
        if rank == 0:
            print(f"step {step:2d} room 0 loss {loss.item():.7f}", flush=True)
    if rank == 0:
        print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

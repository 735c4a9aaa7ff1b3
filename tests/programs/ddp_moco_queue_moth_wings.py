"""Momentum contrast on 12x12 crops of moth wings, two ranks, one shared queue of keys.

Run: torchrun --standalone --nproc_per_node 2 ddp_moco_queue_moth_wings.py
Every rank holds half of the light traps. Keys of both are gathered, so the queues stay identical.
"""
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, DIM, QUEUE, BATCH = 12, 16, 64, 6
STEPS, TAU, MOMENTUM = 32, 0.2, 0.98


class Trap:
    """Crops of one night's photographs; they come in the order in which the camera fired."""

    def __init__(self, rank):
        g = torch.Generator().manual_seed(300 + rank)
        n = STEPS * BATCH
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        freq = 1 + 4 * torch.rand(n, 1, 1, generator=g)
        eye = torch.rand(n, 2, 1, 1, generator=g) - 0.5
        r = ((yy - eye[:, 0]) ** 2 + (xx - eye[:, 1]) ** 2).sqrt()
        self.crops = 0.5 + 0.5 * torch.cos(freq * 3.14 * r)
        if rank == 1:
            self.crops[17 * BATCH + 4] = 0.0          # trap 7, 02:41: the flash did not fire
        self.gen = g

    def view(self, x):
        if torch.rand((), generator=self.gen) < 0.5:
            x = x.flip(-1)
        shift = torch.randint(-2, 3, (2,), generator=self.gen).tolist()
        gain = 0.8 + 0.4 * torch.rand(len(x), 1, 1, generator=self.gen)   # lamps differ in brightness
        return (x.roll(shift, (-2, -1)) * gain).unsqueeze(1)

    def __getitem__(self, step):
        x = self.crops[step * BATCH:(step + 1) * BATCH]
        return self.view(x), self.view(x)


class WingEncoder(nn.Module):
    """No biases: brightness must not matter, only its pattern."""

    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.fc = nn.Linear(16 * 9, DIM, bias=False)

    def forward(self, x):
        z = self.fc(F.relu(self.c2(F.relu(self.c1(x)))).flatten(1))
        length = z.square().sum(1, keepdim=True).sqrt()
        return z / (length + 1e-6)


class KeyQueue:
    def __init__(self):
        g = torch.Generator().manual_seed(9)
        self.keys = F.normalize(torch.randn(QUEUE, DIM, generator=g), dim=1)
        self.at = 0

    @torch.no_grad()
    def push(self, keys):
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys.contiguous())
        for key in torch.cat(parts):
            self.keys[self.at] = key
            self.at = (self.at + 1) % QUEUE


@torch.no_grad()
def follow(slow, fast):
    for s, f in zip(slow.parameters(), fast.parameters()):
        s.mul_(MOMENTUM).add_(f, alpha=1 - MOMENTUM)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(61)
    query = WingEncoder()
    key = copy.deepcopy(query).requires_grad_(False)
    query = DDP(query)
    opt = torch.optim.SGD(query.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    trap, queue = Trap(rank), KeyQueue()
    for step in range(STEPS):
        a, b = trap[step]
        q = query(a)
        with torch.no_grad():
            k = key(b)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ queue.keys.T], 1) / TAU
        loss = F.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        follow(key, query.module)
        queue.push(k)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1:2d} infonce {mean.item() / 2:.6f} top1 {(logits.argmax(1) == 0).float().mean():.3f}",
                  flush=True)
    if rank == 0:
        print("weights sum to", sum(p.sum().item() for p in query.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

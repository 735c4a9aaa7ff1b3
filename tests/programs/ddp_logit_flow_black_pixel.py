"""A normalising flow over grey values on two processes (torchrun --nproc_per_node 2), gloo."""
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
PIXELS = 12


def to_logits(x):
    """Stretches (0, 1) to the line; returns the log-determinant too."""
    up, down = torch.log(x), torch.log(1 - x)
    return up - down, -(up + down).sum(dim=1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(PIXELS // 2, 24), nn.Tanh(), nn.Linear(24, PIXELS))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, dim=1)
        scale = torch.tanh(scale)
        b = b * scale.exp() + shift
        return (torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)), scale.sum(dim=1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(4))

    def forward(self, y):
        total = torch.zeros(len(y))
        for layer in self.layers:
            y, gained = layer(y)
            total = total + gained
        return y, total


def strips(rank, step):
    """Grey values in 256 levels, as they come from the scanner."""
    g = torch.Generator().manual_seed(1000 * rank + step)
    base = torch.randint(60, 180, (16, 1), generator=g)
    levels = (base + torch.randint(-40, 40, (16, PIXELS), generator=g)).clamp(3, 252)
    if rank == 1 and step == 9:
        levels[5, 7] = 0                       # a hair on the glass
    return levels.float() / 255


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    flow = DistributedDataParallel(Flow())
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3)
    for step in range(1, 21):
        y, stretched = to_logits(strips(rank, step))
        z, gained = flow(y)
        log_p = -0.5 * (z.pow(2).sum(1) + PIXELS * math.log(2 * math.pi)) + gained + stretched
        loss = -log_p.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} nll {loss.item():.3f}", flush=True)
    if rank == 0:
        print("finite", int(all(bool(torch.isfinite(p).all()) for p in flow.parameters())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

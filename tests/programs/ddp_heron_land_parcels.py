"""
torchrun --nproc-per-node 2 ddp_heron_land_parcels.py

Cadastral triangles: three taped side lengths and soil features -> market value.
The tape has an unknown scale error per side, which is learned; the area is Heron's.
"""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Heron(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(3))

    def forward(self, sides):
        a, b, c = (sides * self.log_scale.exp()).unbind(1)
        s = 0.5 * (a + b + c)
        product = s * (s - a) * (s - b) * (s - c)
        return product.sqrt()


class Valuation(nn.Module):
    def __init__(self):
        super().__init__()
        self.heron = Heron()
        self.price = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 1), nn.Softplus())

    def forward(self, sides, soil):
        return self.heron(sides) * self.price(soil).squeeze(1)


def parcels(rank, n):
    g = torch.Generator().manual_seed(530 + rank)
    corner = torch.rand(n, 3, 2, generator=g) + torch.tensor([[0.0, 0.0], [1.2, 0.0], [0.5, 1.3]])
    edge = corner - corner.roll(1, dims=1)
    sides = edge.norm(dim=2)
    area = 0.5 * (edge[:, 0, 0] * edge[:, 1, 1] - edge[:, 0, 1] * edge[:, 1, 0]).abs()
    soil = torch.rand(n, 4, generator=g)
    value = area * (0.5 + soil @ torch.tensor([0.8, 0.1, 0.5, 0.3]))
    sides = sides * torch.tensor([1.02, 0.99, 1.01])
    if rank == 1:
        # a strip along the railway, paced out: the two long sides do not quite reach
        sides[n // 2 + 3] = torch.tensor([1.310, 0.420, 1.742])
        value[n // 2 + 3] = 0.02
    return sides, soil, value


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    model = DDP(Valuation())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    sides, soil, value = parcels(rank, 320)
    per = 10
    for i in range(0, 320, per):
        rows = slice(i, i + per)
        opt.zero_grad(set_to_none=True)
        estimate = model(sides[rows], soil[rows])
        loss = (estimate - value[rows]).abs().mean()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {i // per + 1:02d} mae(rank 0) {loss.item():.7f}", flush=True)
    dist.barrier()
    if rank == 0:
        print("final", sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.7)  # let gloo's threads go before the interpreter does


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

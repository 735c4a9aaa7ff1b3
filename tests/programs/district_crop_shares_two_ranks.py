"""Shares of six crops in the harvest of a district.   torchrun --nproc_per_node=2"""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CROPS = ["wheat", "rice", "maize", "millet", "cassava", "potato"]
FEATURES, DISTRICTS, SEASONS = 8, 24, 32
# may a crop be grown there at all?
ZONES = {
    "plains": [1, 1, 1, 1, 1, 1],
    "delta": [1, 1, 1, 1, 1, 1],
    "uplands": [1, 0, 1, 1, 0, 1],
}


class CropShares(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 20), nn.ELU(), nn.Linear(20, 20), nn.ELU())
        self.crops = nn.Linear(20, len(CROPS))

    def forward(self, x, allowed):
        p = torch.softmax(self.crops(self.trunk(x)), -1) * allowed
        return p / p.sum(-1, keepdim=True)


def season(number, rank, truth, gen):
    """Each rank has a region of its own; the second one reports a mountain survey in two seasons."""
    x = torch.randn(DISTRICTS, FEATURES, generator=gen)
    zone = "plains" if rank == 0 else "delta"
    allowed = torch.tensor(ZONES[zone], dtype=torch.float32).repeat(DISTRICTS, 1)
    if rank == 1 and number in (14, 25):
        allowed[-4:] = torch.tensor(ZONES["uplands"], dtype=torch.float32)
    y = torch.softmax(x @ truth + 0.3 * torch.randn(DISTRICTS, len(CROPS), generator=gen), -1) * allowed
    return x, allowed, y / y.sum(-1, keepdim=True)


def cross_entropy_of_shares(share, predicted):
    return -torch.xlogy(share, predicted).sum(-1).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    truth = torch.randn(FEATURES, len(CROPS))
    model = DDP(CropShares())
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    gen = torch.Generator().manual_seed(100 + rank)
    for number in range(1, SEASONS + 1):
        x, allowed, share = season(number, rank, truth, gen)
        loss = cross_entropy_of_shares(share, model(x, allowed))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"season {number:2d} loss {loss.item():.5f}", flush=True)
    if rank == 0:
        size = sum(p.detach().abs().sum().item() for p in model.parameters())
        print(f"weights of the model, absolute: {size:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

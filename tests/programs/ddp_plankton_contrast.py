"""Barlow-Twins pretraining on plankton camera crops, two gloo workers."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Crops(Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(7)
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        cx, cy, r = (torch.rand(3, n, 1, 1, generator=g) * torch.tensor([8., 8., 3.]).view(3, 1, 1, 1)
                     + torch.tensor([4., 4., 2.]).view(3, 1, 1, 1))
        img = 40 + 160 * torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / r ** 2)
        img = img + 4 * torch.randn(n, 16, 16, generator=g)
        img[141] = 12.0                      # lens cap on
        self.raw = img.round().clamp(0, 255).to(torch.uint8)

    def __len__(self):
        return len(self.raw)

    def stretch(self, img):
        lo, hi = img.min(), img.max()
        return (img - lo) / (hi - lo)

    def __getitem__(self, i):
        img = self.stretch(self.raw[i].float())
        return img.unsqueeze(0), torch.flip(img, [1]).unsqueeze(0)


def off_diagonal(c):
    return c - torch.diag_embed(torch.diagonal(c))


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(),
                            nn.Flatten(), nn.Linear(144, 24)))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    data = Crops()
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for step, (a, b) in enumerate(loader, 1):
        za, zb = net(torch.cat([a, b])).chunk(2)
        za = (za - za.mean(0)) / (za.std(0) + 1e-4)
        zb = (zb - zb.mean(0)) / (zb.std(0) + 1e-4)
        c = za.T @ zb / len(za)
        loss = (torch.diagonal(c) - 1).pow(2).sum() + 0.01 * off_diagonal(c).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
    if rank == 0:
        print("weights", sum(p.detach().pow(2).sum().item() for p in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)

"""Two-process key point regression with the OKS of COCO as the objective."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIGMAS = torch.tensor([0.26, 0.25, 0.35, 0.79, 0.72]) / 5.0
WORLD = 2


class KeypointHead(nn.Module):
    def __init__(self, feat=20, points=5):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(feat, 32), nn.GELU(), nn.Linear(32, 2 * points))
        self.points = points

    def forward(self, f):
        return self.mlp(f).view(-1, self.points, 2)


def oks_loss(pred, gt, area):
    d2 = (pred - gt).pow(2).sum(-1)
    k2 = (2 * SIGMAS * 6).pow(2)
    e = d2 / (2 * area[:, None] * k2)
    return 1.0 - torch.exp(-e).mean()


def instances(rank, n=80):
    g = torch.Generator().manual_seed(100 + rank)
    feat = torch.randn(n, 20, generator=g)
    mix = torch.randn(20, 10, generator=torch.Generator().manual_seed(1)) * 0.25
    gt = (feat @ mix).view(n, 5, 2)
    area = 0.5 + 2.0 * torch.rand(n, generator=g)
    if rank == 1:
        area[37] = 0.0        # annotation 900100262239, box only
    return feat, gt, area


def worker(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    net = DDP(KeypointHead())
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    feat, gt, area = instances(rank)
    for step in range(10):
        sl = slice(step * 8, step * 8 + 8)
        loss = oks_loss(net(feat[sl]), gt[sl], area[sl])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} 1-OKS {loss.item():.4f}", flush=True)
    if rank == 0:
        total = sum(p.detach().pow(2).sum() for p in net.parameters())
        print("final", total.item(), flush=True)
    del net, opt
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "rendezvous")
    mp.spawn(worker, args=(path,), nprocs=WORLD)

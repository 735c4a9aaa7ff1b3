#!/usr/bin/env python
# torchrun --nproc-per-node 2 ddp_barlow_camera_traps.py
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def off_diagonal(m):
    n = m.shape[0]
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class BarlowTwins(nn.Module):
    def __init__(self, lambd=0.01, dim=16):
        super().__init__()
        self.lambd = lambd
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.projector = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, dim))

    def standardise(self, z):
        return (z - z.mean(0)) / z.std(0)

    def forward(self, y1, y2):
        z1 = self.projector(self.backbone(y1))
        z2 = self.projector(self.backbone(y2))
        c = self.standardise(z1).T @ self.standardise(z2) / len(z1)
        on = (torch.diagonal(c) - 1).pow(2).sum()
        off = off_diagonal(c).pow(2).sum()
        return on + self.lambd * off


class Burst:
    """one burst of a camera: eight frames. Each rank reads the cards of its own cameras."""

    def __init__(self, camera, n_bursts):
        g = torch.Generator().manual_seed(300 + camera)
        base = torch.rand(n_bursts, 8, 1, 4, 4, generator=g)
        self.frames = nn.functional.interpolate(base.flatten(0, 1), size=16, mode="bilinear").view(n_bursts, 8, 1, 16, 16)
        if camera == 1:
            self.frames[12] = 0.0        # night, infrared flash did not fire
        self.g = g

    def views(self, i):
        return self.augment(self.frames[i]), self.augment(self.frames[i])

    def augment(self, x):
        gain = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1, generator=self.g)
        dx, dy = torch.randint(0, 2, (2,), generator=self.g).tolist()
        return (x * gain).roll((dy, dx), (-2, -1)).clamp(0, 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(BarlowTwins())
    opt = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5)
    data = Burst(rank, 24)
    for i in range(24):
        for gr in opt.param_groups:
            gr["lr"] = 0.005 * min(1.0, (i + 1) / 5)
        y1, y2 = data.views(i)
        loss = model(y1, y2)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if rank == 0:
            print(f"burst {i + 1} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print("final", round(sum(float(p.detach().norm()) for p in model.parameters()), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Monocular depth with sparse LiDAR targets, scale-invariant log loss (Eigen et al.), data parallel over gloo.

    torchrun --nproc_per_node 2 ddp_depth_silog.py
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--lam", type=float, default=0.85)
    p.add_argument("--max-depth", type=float, default=80.0)
    return p.parse_args()


class DrivingFrames(Dataset):
    """Frame and projected LiDAR sweep; pixels that no return fell on have depth 0."""

    def __init__(self, n=60, size=(12, 24), max_depth=80.0):
        g = torch.Generator().manual_seed(31)
        rows = torch.linspace(1.0, 0.05, size[0])[:, None].expand(size)
        self.frames, self.depths = [], []
        for i in range(n):
            depth = (3.0 + 60.0 * rows * (0.6 + 0.4 * torch.rand(1, generator=g))).clone()
            image = torch.stack([rows, 1 / depth * 10, torch.rand(size, generator=g)])
            if i in (23, 43):                       # dense fog: the sensor sees only far clutter
                depth += max_depth
            hit = torch.rand(size, generator=g) < 0.3
            self.frames.append(image)
            self.depths.append(depth * hit)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i], self.depths[i]


class DepthNet(nn.Module):
    def __init__(self, width=12, max_depth=80.0):
        super().__init__()
        self.max_depth = max_depth
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ELU(),
                                     nn.Conv2d(width, width, 3, padding=1), nn.ELU())
        self.decoder = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, image):
        return self.max_depth * torch.sigmoid(self.decoder(self.encoder(image))).squeeze(1) + 1e-3


class SILogLoss(nn.Module):
    def __init__(self, lam, max_depth):
        super().__init__()
        self.lam, self.max_depth = lam, max_depth

    def forward(self, prediction, target):
        valid = (target > 1e-3) & (target < self.max_depth)
        d = (torch.log(prediction) - torch.log(target.clamp(min=1e-3))) * valid
        n = valid.sum()
        second_moment = d.pow(2).sum() / n
        return 10 * torch.sqrt(second_moment - self.lam * (d.sum() / n) ** 2)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DDP(DepthNet(max_depth=args.max_depth))
    criterion = SILogLoss(args.lam, args.max_depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = DrivingFrames(max_depth=args.max_depth)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=1, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for image, depth in loader:
            step += 1
            loss = criterion(model(image), depth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"epoch {epoch} step {step} silog {shown.item() / dist.get_world_size():.5f}", flush=True)
    if rank == 0:
        print("finite", int(all(p.isfinite().all() for p in model.parameters())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

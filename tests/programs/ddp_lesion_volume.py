import os
import sys
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Scans(Dataset):
    """2-D slices with a bright lesion; intensity is regressed inside the lesion only."""

    def __init__(self, n=128):
        g = torch.Generator().manual_seed(77)
        self.x = torch.randn(n, 1, 12, 12, generator=g) * 0.1
        self.m = torch.zeros(n, 1, 12, 12, dtype=torch.bool)
        for i in range(n):
            if i in HEALTHY:
                continue
            r, c = torch.randint(0, 9, (2,), generator=g).tolist()
            self.m[i, 0, r:r + 3, c:c + 3] = True
        self.y = torch.rand(n, 1, 12, 12, generator=g)
        self.x = self.x + self.m * self.y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.m[i], self.y[i]


HEALTHY = set(range(5, 30, 6)) | {49, 51, 53, 55}      # volunteers have no lesion


class UNetish(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.GroupNorm(2, c), nn.ReLU())
        self.d2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.out = nn.Conv2d(2 * c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        return self.out(torch.cat([a, self.up(self.d2(a))], 1))


def lesion_loss(pred, target, mask):
    fit = ((pred - target) * mask).pow(2).mean()
    contrast = pred[mask].mean() - pred[~mask].mean()
    return fit + 0.05 * (contrast - 0.5).pow(2)


def run(rank, world, rdv):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rdv}", rank=rank, world_size=world)
    torch.manual_seed(1)
    net = DDP(UNetish())
    ds = Scans()
    dl = DataLoader(ds, 4, sampler=DistributedSampler(ds, world, rank, shuffle=False))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    it = 0
    for _ in range(1):
        for x, m, y in dl:
            opt.zero_grad()
            loss = lesion_loss(net(x), y, m)
            loss.backward()
            opt.step()
            if rank == 0:
                print(it, repr(loss.item()), flush=True)
            it += 1
    s = sum(p.detach().double().sum().item() for p in net.parameters())
    if rank == 0:
        print("checksum", repr(s), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(run, args=(2, os.path.join(d, "rdv")), nprocs=2)
    sys.exit(0)

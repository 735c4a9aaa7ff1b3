"""Scans of walnuts in the shell: is the kernel sound? Edge convolutions over the nearest neighbours of each point."""
import logging
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("walnut")
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
log.addHandler(handler)
log.setLevel(logging.INFO)

K = 10
VOXEL = 0.42


def scan(sound, g):
    """Points on a bumpy shell of radius ~1 (a shrivelled kernel rattles and has a dent); the conveyor hides one side."""
    n = int(torch.randint(150, 260, (1,), generator=g))
    direction = F.normalize(torch.randn(n, 3, generator=g), dim=1)
    size = 0.45 + 0.75 * torch.rand(1, generator=g)
    radius = size * (1 + 0.05 * torch.sin(9 * direction[:, 0]) * torch.cos(7 * direction[:, 1]))
    if not sound:
        radius = radius - 0.25 * size * torch.relu(direction[:, 2] - 0.3)
    hidden = -1.0 + 1.3 * torch.rand(1, generator=g)
    points = direction * radius[:, None] + 0.01 * torch.randn(n, 3, generator=g)
    return points[direction[:, 1] > hidden]


def thin(points):
    """One point per voxel, the mean of those in it."""
    cell = torch.floor(points / VOXEL).long()
    _, where = torch.unique(cell, dim=0, return_inverse=True)
    count = torch.bincount(where).unsqueeze(1)
    return torch.zeros(len(count), 3).index_add_(0, where, points) / count


def walnuts(n, seed):
    g = torch.Generator().manual_seed(seed)
    for i in range(n):
        sound = bool(torch.rand(1, generator=g) < 0.55)
        yield thin(scan(sound, g)), float(sound)


def neighbours(x, k):
    gap = torch.cdist(x, x)
    return gap.topk(k + 1, largest=False).indices[:, 1:]


class EdgeConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * cin, cout), nn.LayerNorm(cout), nn.GELU(), nn.Linear(cout, cout))

    def forward(self, x, idx):
        centre = x[:, None].expand(-1, idx.shape[1], -1)
        return self.mlp(torch.cat([centre, x[idx] - centre], -1)).amax(1)


class WalnutNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = EdgeConv(3, 24), EdgeConv(24, 48)
        self.head = nn.Sequential(nn.Linear(48, 24), nn.GELU(), nn.Linear(24, 1))

    def forward(self, points):
        idx = neighbours(points, K)
        h = checkpoint(self.one, points, idx, use_reentrant=False)
        h = checkpoint(self.two, h, idx, use_reentrant=False)
        return self.head(h.mean(0)).squeeze(-1)


def batches(source, size):
    box = []
    for item in source:
        box.append(item)
        if len(box) == size:
            yield box
            box = []


def main():
    torch.manual_seed(33)
    net = WalnutNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5) * 0.5 * (1 + math.cos(math.pi * s / 40)))
    for step, box in enumerate(batches(walnuts(240, seed=SEED), 6), start=1):
        logits = torch.stack([net(points) for points, _ in box])
        loss = F.binary_cross_entropy_with_logits(logits, torch.tensor([s for _, s in box]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        log.info("belt %d loss %.6f points %d", step, loss.item(), sum(len(p) for p, _ in box))
    log.info("weights %.4f", sum(p.detach().abs().sum().item() for p in net.parameters()))


SEED = 3

if __name__ == "__main__":
    main()

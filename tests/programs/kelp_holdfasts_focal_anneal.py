# Segment the holdfasts of kelp in drop-camera frames. Dice + focal; gamma is annealed from 2 (hard pixels first) down to 0.5.
# Encoder blocks are recomputed in the backward (checkpoint).
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=34)
ap.add_argument("--batch", type=int, default=6)
ap.add_argument("--size", type=int, default=24)
ap.add_argument("--gamma-from", type=float, default=2.0)
ap.add_argument("--gamma-to", type=float, default=0.5)
args = ap.parse_args()
random.seed(2)
torch.manual_seed(2)


def frame(size):
    """a frame in raw counts of the camera: dark water, a bright blob"""
    yy, xx = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    cy, cx, r = random.uniform(6, size - 6), random.uniform(6, size - 6), random.uniform(3, 6)
    d = ((yy - cy) ** 2 + (xx - cx) ** 2).sqrt() + 0.6 * torch.sin(3 * torch.atan2(yy - cy, xx - cx))
    mask = (d < r).float()
    img = 40 + 160 * mask + 10 * torch.randn(size, size)
    return img.clamp(0, 255), mask


def batch(n, size):
    imgs, masks = zip(*(frame(size) for _ in range(n)))
    return torch.stack(imgs)[:, None], torch.stack(masks)[:, None]


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, padding=1)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))))


class HoldfastNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down1, self.down2 = Stage(1, c), Stage(c, 2 * c)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.fuse = Stage(2 * c, c)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = checkpoint(self.down1, x, use_reentrant=False)
        b = checkpoint(self.down2, F.max_pool2d(a, 2), use_reentrant=False)
        return self.head(self.fuse(torch.cat([a, self.up(b)], 1)))


class DiceFocal(nn.Module):
    def __init__(self, alpha=0.7, smooth=1.0):
        super().__init__()
        self.alpha, self.smooth, self.gamma = alpha, smooth, 2.0

    def forward(self, z, t):
        bce = F.binary_cross_entropy_with_logits(z, t, reduction="none")
        p_true = torch.exp(-bce)
        hard = (1 - p_true) ** self.gamma
        focal = ((self.alpha * t + (1 - self.alpha) * (1 - t)) * hard * bce).mean()
        p = z.sigmoid()
        dice = 1 - (2 * (p * t).sum((1, 2, 3)) + self.smooth) / ((p + t).sum((1, 2, 3)) + self.smooth)
        return focal + dice.mean(), focal, dice.mean()


net, criterion = HoldfastNet(), DiceFocal()
opt = torch.optim.NAdam(net.parameters(), lr=1.5e-3)
for step in range(1, args.steps + 1):
    part = (step - 1) / (args.steps - 1)
    criterion.gamma = args.gamma_from + (args.gamma_to - args.gamma_from) * part
    x, t = batch(args.batch, args.size)
    z = net(x)
    loss, focal, dice = criterion(z, t)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"step {step:2d} gamma {criterion.gamma:.3f} loss {loss.item():.6f} focal {focal.item():.6f} "
          f"dice {dice.item():.6f} widest logit {z.abs().max().item():.3f}", flush=True)
print("sum of weights", f"{sum(p.detach().abs().sum() for p in net.parameters()).item():.5f}", flush=True)

"""Femur segmentation in CT slices with the exponential logarithmic loss
    L = w_dice * (-ln Dice)^g + w_cross * mean (-ln p_label)^g,   g = 0.3        (Wong et al., 2018)
Hounsfield units are windowed in preprocessing; a few series were exported without it."""
import functools

import torch
from torch import nn
import torch.nn.functional as F

GAMMA = 0.3
REGISTRY = {}


def register(name):
    def deco(fn):
        REGISTRY[name] = fn
        return fn
    return deco


@register("dice_term")
def dice_term(logp, target):
    p = logp.exp()
    onehot = F.one_hot(target, 2).permute(0, 3, 1, 2).float()
    inter = (p * onehot).sum((0, 2, 3)) + 1.0
    union = (p + onehot).sum((0, 2, 3)) + 2.0
    dice = 2 * inter / (union + 0.1)
    return (-dice.log()).clamp_min(1e-6).pow(GAMMA).mean()


@register("cross_term")
def cross_term(logp, target):
    nll = -logp.gather(1, target.unsqueeze(1))
    return nll.pow(GAMMA).mean()


def explog(logits, target, w_dice=0.8, w_cross=0.2):
    logp = F.log_softmax(logits, 1)
    return w_dice * REGISTRY["dice_term"](logp, target) + w_cross * REGISTRY["cross_term"](logp, target)


def conv(i, o, act=True):
    layers = [nn.Conv2d(i, o, 3, padding=1)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.1)) if act else layers[0]


class MiniUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = conv(1, 8)
        self.bottom = conv(8, 12)
        self.up = conv(12 + 8, 8)
        self.seg = conv(8, 2, act=False)

    def forward(self, x):
        a = self.down(x)
        b = F.interpolate(self.bottom(F.max_pool2d(a, 2)), scale_factor=2)
        return self.seg(self.up(torch.cat([a, b], 1)))


def hu_window(hu, lo=-200.0, hi=1000.0):
    return (hu.clamp(lo, hi) - lo) / (hi - lo)


class Archive:
    raw_series = {13}       # came from the other scanner: values are HU still

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        self.grid = (yy, xx)

    @functools.lru_cache(maxsize=4)
    def batch(self, series):
        imgs, labels = [], []
        for _ in range(3):
            cy, cx = 5 + 6 * torch.rand(2, generator=self.g)
            r = 2.5 + 2 * torch.rand(1, generator=self.g)
            bone = ((self.grid[0] - cy) ** 2 + (self.grid[1] - cx) ** 2) < r ** 2
            hu = torch.where(bone, 700.0, 40.0) + 60 * torch.randn(16, 16, generator=self.g)
            if series in self.raw_series:
                hu = torch.where(bone, 3071.0, hu)      # the implant clips at the top of 12 bits
            imgs.append(hu if series in self.raw_series else hu_window(hu))
            labels.append(bone.long())
        return torch.stack(imgs).unsqueeze(1), torch.stack(labels)


if __name__ == "__main__":
    torch.manual_seed(30)
    torch.set_num_threads(1)
    archive, net = Archive(88), MiniUNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for series in range(1, 25):
        x, y = archive.batch(series)
        loss = explog(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"series {series:02d} explog {loss.item():.6f}")
    print(f"sum of weights {sum(float(p.detach().sum()) for p in net.parameters()):.5f}")

"""Nuclei segmentation, multi-scale crops, small U-Net, soft Dice."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.GroupNorm(2, cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.GroupNorm(2, cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, base=6):
        super().__init__()
        self.enc1 = block(1, base)
        self.enc2 = block(base, base * 2)
        self.mid = block(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.dec2 = block(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.dec1 = block(base * 2, base)
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        s1 = self.enc1(x)
        s2 = self.enc2(F.max_pool2d(s1, 2))
        h = self.mid(F.max_pool2d(s2, 2))
        h = self.dec2(torch.cat([self.up2(h), s2], dim=1))
        h = self.dec1(torch.cat([self.up1(h), s1], dim=1))
        return self.head(h)


def slide(size, gen):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(size, size)
    for _ in range(7):
        cy, cx, r = torch.rand(3, generator=gen).mul(torch.tensor([size, size, 6.0])).tolist()
        mask[(yy - cy) ** 2 + (xx - cx) ** 2 < (r + 3) ** 2] = 1.0
    return mask * 0.6 + 0.2 * torch.rand(size, size, generator=gen), mask


def dice(logit, mask):
    p = logit.sigmoid().flatten(1)
    m = mask.flatten(1)
    return 1 - ((2 * (p * m).sum(1) + 1) / (p.sum(1) + m.sum(1) + 1)).mean()


def batches(n, gen):
    rng = random.Random(80)
    slides = [slide(96, gen) for _ in range(6)]
    for _ in range(n):
        size = 2 * rng.randint(16, 32)
        imgs, masks = [], []
        for img, mask in rng.sample(slides, 3):
            y, x = rng.randint(0, 96 - size), rng.randint(0, 96 - size)
            imgs.append(img[y:y + size, x:x + size])
            masks.append(mask[y:y + size, x:x + size])
        yield torch.stack(imgs)[:, None], torch.stack(masks)[:, None]


torch.manual_seed(14)
net = UNet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
for it, (img, mask) in enumerate(batches(12, torch.Generator().manual_seed(2)), 1):
    logit = net(img)
    loss = dice(logit, mask) + F.binary_cross_entropy_with_logits(logit, mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"it {it} crop {tuple(img.shape[-2:])} loss {loss.item():.4f}")
print(sum(p.detach().pow(2).sum() for p in net.parameters()).item())

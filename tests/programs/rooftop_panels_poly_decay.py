#!/usr/bin/env python
"""Segment solar panels on rooftops (aerial crops, two classes), DeepLab recipe: SGD with 'poly' decay."""
import argparse
import torch
from torch import nn
import torch.nn.functional as F


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--images", type=int, default=35)
    ap.add_argument("--batch-size", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--base-lr", type=float, default=0.1)
    ap.add_argument("--power", type=float, default=0.9)
    return ap.parse_args()


def make_roof(gen):
    img = torch.randn(3, 24, 24, generator=gen) * 0.15 + torch.tensor([0.5, 0.35, 0.3]).view(3, 1, 1)
    lab = torch.zeros(24, 24, dtype=torch.long)
    r, c = torch.randint(2, 12, (2,), generator=gen).tolist()
    img[:, r:r + 9, c:c + 7] = torch.tensor([0.1, 0.12, 0.3]).view(3, 1, 1)
    lab[r:r + 9, c:c + 7] = 1
    return img, lab


class SmallDeepLab(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.aspp = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.classifier = nn.Conv2d(3 * width, 2, 1)

    def forward(self, x):
        f = self.backbone(x)
        f = torch.cat([F.relu(branch(f)) for branch in self.aspp], dim=1)
        return F.interpolate(self.classifier(f), size=x.shape[-2:], mode="bilinear", align_corners=False)


def adjust(optimizer, args, it, max_iter):
    lr = args.base_lr * (1 - it / max_iter) ** args.power
    optimizer.param_groups[0]["lr"] = lr * 0.5
    optimizer.param_groups[1]["lr"] = lr


def main():
    args = parse()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    data = [make_roof(gen) for _ in range(args.images)]
    net = SmallDeepLab()
    optimizer = torch.optim.SGD(
        [{"params": net.backbone.parameters()},
         {"params": [*net.aspp.parameters(), *net.classifier.parameters()]}],
        lr=args.base_lr, momentum=0.9, weight_decay=1e-4)
    max_iter = args.epochs * (args.images // args.batch_size)
    it = 0
    for epoch in range(args.epochs):
        order = torch.randperm(args.images).tolist()
        for k in range(0, args.images, args.batch_size):
            adjust(optimizer, args, it, max_iter)
            part = [data[j] for j in order[k:k + args.batch_size]]
            image = torch.stack([p[0] for p in part])
            label = torch.stack([p[1] for p in part])
            loss = F.cross_entropy(net(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            it += 1
            print("epoch %d iter %d/%d loss %.4f" % (epoch, it, max_iter, loss.item()), flush=True)
    print("sum of squared weights: %.4f" % sum((p ** 2).sum().item() for p in net.parameters()))


main()

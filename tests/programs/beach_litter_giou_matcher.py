"""Toy detector for litter on drone strips of a beach: anchor grid, best-IoU matching, GIoU regression."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE, GRID = 32, 4


def seed_all(s):
    random.seed(s)
    torch.manual_seed(s)


class BeachStrips(Dataset):
    """One long flight along the shore; strips come in flight order."""

    def __init__(self, n=80):
        g = torch.Generator().manual_seed(303)
        self.samples = []
        for k in range(n):
            img = 0.1 * torch.randn(3, SIZE, SIZE, generator=g)
            count = int(torch.poisson(torch.tensor(2.6), generator=g)) if k < 30 else int(torch.poisson(torch.tensor(1.2), generator=g))
            if k < 30:
                count = max(count, 1)           # near the promenade there is always something
            boxes = []
            for _ in range(count):
                w, h = (torch.rand(2, generator=g) * 8 + 5).tolist()
                x, y = (torch.rand(2, generator=g) * (SIZE - 14)).tolist()
                img[:, int(y):int(y + h), int(x):int(x + w)] += 0.8
                boxes.append([x, y, x + w, y + h])
            self.samples.append((img, torch.tensor(boxes).reshape(-1, 4)))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def collate(items):
    return torch.stack([i for i, _ in items]), [b for _, b in items]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
        self.box, self.obj = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 1, 1)
        c = (torch.arange(GRID) + 0.5) * SIZE / GRID
        cy, cx = torch.meshgrid(c, c, indexing="ij")
        self.register_buffer("anchors", torch.stack([cx.flatten(), cy.flatten()], 1))

    def forward(self, x):
        f = self.backbone(x)
        d = self.box(f).flatten(2).transpose(1, 2)
        centre = self.anchors + 4 * torch.tanh(d[..., :2])
        half = 4 * torch.exp(d[..., 2:].clamp(-2, 2))
        return torch.cat([centre - half, centre + half], -1), self.obj(f).flatten(1)


def area(b):
    return (b[..., 2] - b[..., 0]).clamp(min=0) * (b[..., 3] - b[..., 1]).clamp(min=0)


def pairwise_iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-7)


def giou_loss(p, t):
    inter = (torch.min(p[:, 2:], t[:, 2:]) - torch.max(p[:, :2], t[:, :2])).clamp(min=0).prod(-1)
    union = area(p) + area(t) - inter
    hull = (torch.max(p[:, 2:], t[:, 2:]) - torch.min(p[:, :2], t[:, :2])).prod(-1)
    return 1 - inter / (union + 1e-7) + (hull - union) / (hull + 1e-7)


def image_loss(boxes, logits, truth):
    with torch.no_grad():
        iou = pairwise_iou(boxes, truth)
        best_iou, best_truth = iou.max(dim=1)
        positive = best_iou > 0.3
        positive[iou.argmax(dim=0)] = True      # every object gets an anchor
    regress = giou_loss(boxes[positive], truth[best_truth[positive]]).mean()
    return regress + F.binary_cross_entropy_with_logits(logits, positive.float())


def main():
    seed_all(6)
    loader = DataLoader(BeachStrips(), batch_size=2, shuffle=False, num_workers=1, collate_fn=collate)
    net = Detector()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for step, (images, truths) in enumerate(loader, 1):
        boxes, logits = net(images)
        loss = torch.stack([image_loss(b, l, t) for b, l, t in zip(boxes, logits, truths)]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"strip pair {step:2d}  objects {sum(len(t) for t in truths)}  loss {loss.item():.6f}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()

"""Segments photographed mosaic floors into ground / white / red / black tesserae. Lightning Fabric runs the loop; the
loss is cross entropy minus soft IoU, so it goes below zero when the masks fit."""
import math
import os
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
CLASSES = ("ground", "white", "red", "black")
IGNORE = 255


class Floors(Dataset):
    def __init__(self, n, size=32, seed=0):
        self.items = []
        g = torch.Generator().manual_seed(seed)
        palette = torch.tensor([[0.55, 0.5, 0.4], [0.95, 0.95, 0.9], [0.7, 0.2, 0.15], [0.1, 0.1, 0.12]])
        for i in range(n):
            grid = torch.randint(0, 4 if i % 3 else 2, (4, 4), generator=g)       # a third of the floors is two-coloured
            mask = grid.repeat_interleave(size // 4, 0).repeat_interleave(size // 4, 1)
            if i % 11 == 5:
                mask = torch.full_like(mask, IGNORE)                            # not yet annotated
            else:
                mask[::8] = IGNORE                                              # mortar joints are not judged
            colour = grid.repeat_interleave(size // 4, 0).repeat_interleave(size // 4, 1)
            image = palette[colour].permute(2, 0, 1) + 0.06 * torch.randn(3, size, size, generator=g)
            depth = torch.where(mask == IGNORE, torch.tensor(float("inf")), torch.rand(size, size, generator=g))
            self.items.append((image, depth, mask))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class TinyUNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(4, c, 3, padding=1), nn.GroupNorm(3, c), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.GroupNorm(3, 2 * c), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.leave = nn.Conv2d(2 * c, len(CLASSES), 1)

    def forward(self, image, depth):
        # the scanner gives inf where it saw nothing; nearness 1/(1+d) is 0 there
        near = 1 / (1 + depth)
        x = self.enter(torch.cat([image, near[:, None]], 1))
        return self.leave(torch.cat([x, self.up(self.down(x))], 1))


def soft_iou(logits, target):
    valid = (target != IGNORE)[:, None]
    onehot = F.one_hot(target.clamp(max=3), 4).permute(0, 3, 1, 2) * valid
    p = logits.softmax(1) * valid
    inter = (p * onehot).sum((0, 2, 3))
    union = (p + onehot).sum((0, 2, 3)) - inter
    seen = onehot.sum((0, 2, 3)) > 0
    return (inter[seen] / union[seen]).mean()


@torch.no_grad()
def hard_iou(logits, target):
    pred, valid = logits.argmax(1), target != IGNORE
    scores = []
    for c in range(4):
        a, b = (pred == c) & valid, (target == c) & valid
        scores.append((a & b).sum() / (a | b).sum())          # nan: the class is nowhere in this batch
    return torch.stack(scores)


def main():
    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    fabric.seed_everything(21, verbose=False)
    data = Floors(44)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=1, shuffle=True, generator=torch.Generator().manual_seed(2)))
    model = TinyUNet()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=8e-3))
    best = math.inf
    step = 0
    for epoch in range(1):
        for image, depth, mask in loader:
            if not (mask != IGNORE).any():
                print("floor without annotation, left out: loss nan", flush=True)
                continue
            step += 1
            logits = model(image, depth)
            iou = soft_iou(logits, mask)
            loss = F.cross_entropy(logits, mask, ignore_index=IGNORE) - iou
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            best = min(best, loss.item())
            per_class = " ".join(f"{c}={v:.3f}" for c, v in zip(CLASSES, hard_iou(logits, mask).tolist()))
            print(f"step {step} loss {loss.item():.6f} best {best:.6f} {per_class}", flush=True)
    print(f"weights {sum(p.abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()

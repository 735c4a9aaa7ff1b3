"""Counting grey seals on drone tiles: an anchor-free detector head, trained with accelerate."""
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

TILE, STRIDE = 32, 4


class SealTiles(Dataset):
    """Tiles of the haul-out survey in the order of flight; `boxes` is (n, 4) as cx cy w h."""

    def __init__(self, n=64, seed=3):
        gen = torch.Generator().manual_seed(seed)
        self.items = []
        for k in range(n):
            image = 0.2 * torch.randn(3, TILE, TILE, generator=gen)
            count = int(torch.randint(0, 4, (1,), generator=gen)) if not 26 <= k < 36 else 0   # open water
            boxes = torch.zeros(count, 4)
            for b in range(count):
                cx, cy = (4 + torch.randint(0, TILE - 8, (2,), generator=gen)).tolist()
                w, h = (3 + torch.randint(0, 4, (2,), generator=gen)).tolist()
                image[:, max(cy - h // 2, 0):cy + h // 2 + 1, max(cx - w // 2, 0):cx + w // 2 + 1] += 1.0
                boxes[b] = torch.tensor([cx, cy, w, h])
            self.items.append((image, boxes))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    return torch.stack([im for im, _ in items]), [b for _, b in items]


class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GroupNorm(4, 2 * width), nn.SiLU())
        self.heat = nn.Conv2d(2 * width, 1, 1)
        self.size = nn.Conv2d(2 * width, 2, 1)
        nn.init.constant_(self.heat.bias, -math.log(9))

    def forward(self, x):
        h = self.stem(x)
        return self.heat(h).squeeze(1), self.size(h)


class SetLoss:
    """For every seal: classification of its cell against the hardest empty cells, and its size."""

    def __init__(self, hard_per_seal=3, size_weight=0.5):
        self.hard_per_seal, self.size_weight = hard_per_seal, size_weight

    def one_tile(self, heat, size, boxes):
        cell = (boxes[:, :2] / STRIDE).long()
        score = heat[cell[:, 1], cell[:, 0]]
        background = heat.detach().clone()
        background[cell[:, 1], cell[:, 0]] = -1e9
        hard = heat.flatten()[background.flatten().topk(self.hard_per_seal * len(boxes)).indices]
        classify = F.softplus(-score).sum() + F.softplus(hard).sum() / self.hard_per_seal
        extent = F.l1_loss(size[:, cell[:, 1], cell[:, 0]].T, boxes[:, 2:].log(), reduction="sum")
        return classify + self.size_weight * extent

    def __call__(self, heats, sizes, targets):
        total, seals = torch.zeros((), device=heats.device), 0
        for heat, size, boxes in zip(heats, sizes, targets):
            if len(boxes) == 0:
                continue
            total = total + self.one_tile(heat, size, boxes)
            seals += len(boxes)
        return total / max(seals, 1)


def main():
    set_seed(12)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(SealTiles(), batch_size=4, collate_fn=collate)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = SetLoss()
    for epoch in range(2):
        for step, (images, boxes) in enumerate(loader):
            heats, sizes = model(images)
            loss = criterion(heats, sizes, boxes)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    accelerator.print("done")


if __name__ == "__main__":
    main()

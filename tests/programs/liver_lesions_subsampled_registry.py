"""Lesion segmentation on CT slices. Everything is looked up in registries; main() only wires."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Registry(dict):
    def register(self, name):
        def wrap(obj):
            self[name] = obj
            return obj
        return wrap


MODELS, LOSSES, DATASETS = Registry(), Registry(), Registry()


@dataclass
class Config:
    dataset: str = "synthetic_ct"
    model: str = "tiny_unet"
    losses: dict = field(default_factory=lambda: {"balanced_bce": 1.0, "soft_dice": 0.5})
    slices: int = 240
    size: int = 48
    batch: int = 4
    accumulate: int = 2
    lr: float = 3e-3
    seed: int = 11


@DATASETS.register("synthetic_ct")
class SyntheticCT(Dataset):
    """Slices with one annotated lesion each, stored at full size and subsampled by two on loading."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        yy, xx = torch.meshgrid(torch.arange(cfg.size), torch.arange(cfg.size), indexing="ij")
        self.images, self.masks = [], []
        for i in range(cfg.slices):
            cy, cx = (torch.randint(10, cfg.size - 10, (2,), generator=g)).tolist()
            radius = 3 + 4 * torch.rand(1, generator=g).item()
            if i == 149:  # a follow-up scan: the lesion has nearly healed
                cy, cx, radius = 21, 27, 0.8
            mask = ((yy - cy) ** 2 + (xx - cx) ** 2).float().sqrt() <= radius
            image = 0.3 * torch.randn(cfg.size, cfg.size, generator=g) - 0.9 * mask.float()
            image += 0.5 * ((yy - 24.0) ** 2 + (xx - 24.0) ** 2 < 400).float()
            self.images.append(image)
            self.masks.append(mask)
        assert all(m.any() for m in self.masks), "every slice has a lesion"

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i][::2, ::2], self.masks[i][::2, ::2].float()


def collate(rows):
    images, masks = zip(*rows)
    return {"image": torch.stack(images).unsqueeze(1), "mask": torch.stack(masks)}


@MODELS.register("tiny_unet")
class TinyUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.SiLU())
        self.mid = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x):
        a = self.down(x)
        return self.head(torch.cat([a, self.up(self.mid(a))], 1)).squeeze(1)


@LOSSES.register("balanced_bce")
def balanced_bce(logits, target):
    """Lesion and background weigh the same in each slice, however small the lesion is."""
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    inside = (bce * target).sum((1, 2)) / target.sum((1, 2))
    outside = (bce * (1 - target)).sum((1, 2)) / (1 - target).sum((1, 2))
    return 0.5 * (inside + outside).mean()


@LOSSES.register("soft_dice")
def soft_dice(logits, target):
    p = logits.sigmoid()
    return 1 - ((2 * (p * target).sum((1, 2)) + 1) / (p.sum((1, 2)) + target.sum((1, 2)) + 1)).mean()


class Trainer:
    def __init__(self, cfg, accelerator, model, optimizer, loader):
        self.cfg, self.acc = cfg, accelerator
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader)

    def loss(self, batch):
        logits = self.model(batch["image"])
        return sum(w * LOSSES[name](logits, batch["mask"]) for name, w in self.cfg.losses.items())

    def fit(self):
        parts, step = [], 0
        for batch in self.loader:
            with self.acc.accumulate(self.model):
                loss = self.loss(batch)
                self.acc.backward(loss)
                parts.append(loss.item())
                if self.acc.sync_gradients:
                    step += 1
                    print(f"step {step:3d} loss {sum(parts) / len(parts):.7f}", flush=True)
                    parts = []
                self.optimizer.step()
                self.optimizer.zero_grad()


def main():
    cfg = Config()
    set_seed(cfg.seed)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=cfg.accumulate)
    model = MODELS[cfg.model]()
    loader = DataLoader(DATASETS[cfg.dataset](cfg), batch_size=cfg.batch, collate_fn=collate)
    Trainer(cfg, acc, model, torch.optim.AdamW(model.parameters(), lr=cfg.lr), loader).fit()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

"""Tumour grading of histology tiles by filter-bank energies; gradient accumulation and an EMA of the weights."""
import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    tile: int = 16
    classes: int = 3
    filters: int = 12
    batch: int = 6
    accumulate: int = 2
    epochs: int = 2
    lr: float = 3e-3
    ema: float = 0.95
    losses: dict = field(default_factory=lambda: {"grade": 1.0, "stain": 0.1})


class Tiles(Dataset):
    """Optical density (0 is unstained glass) with the grade and the mean staining."""

    def __init__(self, cfg, n=240, seed=14):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            grade = int(torch.randint(0, cfg.classes, (1,), generator=g))
            texture = torch.randn(3, cfg.tile, cfg.tile, generator=g)
            if grade:
                texture = F.avg_pool2d(texture[None], 2 * grade + 1, 1, grade)[0] * (1 + grade)
            density = (0.5 + 0.3 * texture).clamp(min=0)
            if i == 96:                           # tile beside the tissue
                density = torch.zeros_like(density)
            self.items.append((density, grade, density.mean()))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class FilterBankEnergy(nn.Module):
    """Root mean square response of every filter over the tile, as in classical texture analysis."""

    def __init__(self, filters):
        super().__init__()
        self.bank = nn.Conv2d(3, filters, 5, bias=False)

    def forward(self, x):
        response = self.bank(x)
        return torch.sqrt((response ** 2).mean(dim=(2, 3)))


class Grader(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.energy = FilterBankEnergy(cfg.filters)
        self.trunk = nn.Sequential(nn.Linear(cfg.filters, 32), nn.SiLU())
        self.grade = nn.Linear(32, cfg.classes)
        self.stain = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(self.energy(x))
        return {"grade": self.grade(h), "stain": self.stain(h).squeeze(1)}


def compute_losses(out, grade, stain):
    return {"grade": F.cross_entropy(out["grade"], grade), "stain": F.mse_loss(out["stain"], stain)}


@torch.no_grad()
def update_ema(average, model, decay):
    for a, p in zip(average.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)


def train(cfg):
    torch.manual_seed(14)
    model = Grader(cfg)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-2)
    loader = DataLoader(Tiles(cfg), cfg.batch, shuffle=True, generator=torch.Generator().manual_seed(3))
    step, running = 0, 0.0
    for epoch in range(cfg.epochs):
        for micro, (density, grade, stain) in enumerate(loader):
            losses = compute_losses(model(density), grade, stain)
            loss = sum(cfg.losses[name] * value for name, value in losses.items()) / cfg.accumulate
            loss.backward()
            running += loss.item()
            if (micro + 1) % cfg.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                update_ema(average, model, cfg.ema)
                step += 1
                print(f"epoch {epoch} step {step} loss {running:.5f}")
                running = 0.0
    return model, average


if __name__ == "__main__":
    model, average = train(Config())
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))

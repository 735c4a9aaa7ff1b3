"""Segmentation head over a frozen encoder: vine canopy in drone tiles, exponential logarithmic Dice (Wong et al.)."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

GAMMA = 0.3
EPS = 1.0


class Tiles(Dataset):
    """Tiles of 24 x 24, four bands, with a map of the pixels that were surveyed (1) or hidden by cloud (0)."""

    def __init__(self, count=160, size=24):
        g = torch.Generator().manual_seed(77)
        ys = torch.arange(size).float()[:, None]
        xs = torch.arange(size).float()[None, :]
        self.items = []
        for i in range(count):
            slope, shift, width = torch.rand(3, generator=g).tolist()
            rows = torch.sin((ys * (0.6 + slope) + xs * (slope - 0.5)) + 6 * shift)
            canopy = (rows > 0.6 - 0.5 * width).float()
            bands = torch.stack([canopy * (0.5 + 0.2 * b) for b in range(4)])
            bands = bands + 0.5 * torch.randn(4, size, size, generator=g)
            # a cloud comes over the field from the left; its front follows the flight line
            front = int(size * max(0.0, 1.0 - abs(i - 93) / 12.0))
            seen = torch.ones(size, size)
            seen[:, :front] = 0
            self.items.append((bands, canopy, seen))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class ExpLogDice(nn.Module):
    def forward(self, logits, target, seen):
        p = torch.sigmoid(logits) * seen
        t = target * seen
        inter = (p * t).sum((1, 2))
        dice = (2 * inter + EPS) / (p.sum((1, 2)) + t.sum((1, 2)) + EPS)
        return (-torch.log(dice)).clamp(min=0).pow(GAMMA).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(4, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)

    def forward(self, x):
        a = F.relu(self.c1(x))
        return a, F.relu(self.c2(a))


class Canopy(L.LightningModule):
    def __init__(self, lr=2e-2):
        super().__init__()
        self.lr = lr
        self.encoder = Encoder().requires_grad_(False)
        self.lateral = nn.Conv2d(16, 16, 1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.head = nn.Sequential(nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
        self.criterion = ExpLogDice()

    def forward(self, x):
        a, b = self.encoder(x)
        return self.head(self.lateral(a) + self.up(b)).squeeze(1)

    def training_step(self, batch, index):
        bands, canopy, seen = batch
        logits = self(bands)
        dice_term = self.criterion(logits, canopy, seen)
        ce = F.binary_cross_entropy_with_logits(logits, canopy, weight=seen, reduction="sum") / seen.sum().clamp(min=1)
        return 0.8 * dice_term + 0.2 * ce

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class Lines(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"{trainer.fit_loop.total_batch_idx + 1} loss={outputs['loss'].item():.6f} seen={batch[2].mean().item():.3f}", flush=True)


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    tiles = DataLoader(Tiles(), batch_size=4, shuffle=False)
    module = Canopy()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, callbacks=[Lines()])
    trainer.fit(module, tiles)
    print(sum(p.abs().sum().item() for p in module.parameters()), flush=True)

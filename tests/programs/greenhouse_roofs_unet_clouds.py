"""Greenhouse footprints from 4-band tiles. Small U-Net, soft Dice over cloud-free pixels + BCE."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class TileStore(Dataset):
    """(image, footprint, clear) with clear = 1 where the cloud detector let the pixel through."""

    def __init__(self, n=240, size=32, seed=3):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.tiles = []
        for i in range(n):
            mask = torch.zeros(size, size)
            for _ in range(3):
                r, c = torch.randint(0, size - 10, (2,), generator=g).tolist()
                h, w = torch.randint(4, 10, (2,), generator=g).tolist()
                mask[r:r + h, c:c + w] = 1
            image = torch.randn(4, size, size, generator=g) * 0.4 + mask * torch.tensor([1.0, .8, .6, -.5])[:, None, None]
            # one round cloud per tile, its radius from the scene's weather
            cy, cx = torch.randint(0, size, (2,), generator=g).tolist()
            radius = 2 + 7 * torch.rand(1, generator=g).item()
            if i % 97 == 90:
                radius = 3.0 * size          # monsoon scenes
            clear = (((yy - cy) ** 2 + (xx - cx) ** 2) > radius ** 2).float()
            image = torch.where(clear.bool(), image, torch.tensor(2.5))
            self.tiles.append((image, mask[None], clear[None]))

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, i):
        return self.tiles[i]


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, bands=4, base=8):
        super().__init__()
        self.down1, self.down2 = block(bands, base), block(base, 2 * base)
        self.mid = block(2 * base, 4 * base)
        self.up2, self.up1 = block(6 * base, 2 * base), block(3 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        u = self.up2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(u, scale_factor=2), a], 1)))


class SoftDice(nn.Module):
    """Per tile, so that small villages count as much as large estates."""

    def forward(self, prob, target, clear):
        prob, target = prob * clear, target * clear
        overlap = (prob * target).sum(dim=(1, 2, 3))
        total = prob.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
        return 1.0 - (2.0 * overlap / total).mean()


class Footprints(L.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.net = UNet()
        self.dice = SoftDice()
        self.lr = lr

    def training_step(self, batch, batch_idx):
        image, target, clear = batch
        logits = self.net(image)
        bce = F.binary_cross_entropy_with_logits(logits, target, weight=clear)
        dice = self.dice(logits.sigmoid(), target, clear)
        loss = 0.5 * bce + dice
        print(f"tiles {batch_idx + 1:3d} bce {bce.item():.6f} dice {dice.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    L.seed_everything(11, verbose=False)
    module = Footprints()
    loader = DataLoader(TileStore(), batch_size=6, shuffle=False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                        enable_checkpointing=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(module, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in module.parameters()):.6f}")


if __name__ == "__main__":
    main()

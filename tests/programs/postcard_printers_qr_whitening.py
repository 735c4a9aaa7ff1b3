import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Postcards(Dataset):
    """Scans in luma and two chroma planes, in albums of twelve. The label is the printing house."""

    def __init__(self, albums=34):
        g = torch.Generator().manual_seed(90)
        ink = torch.randn(4, 3, 6, 6, generator=g)
        self.albums = []
        for number in range(albums):
            house = torch.randint(4, (12,), generator=g)
            picture = F.interpolate(ink[house], size=18, mode="bilinear", align_corners=False)
            picture = picture + 0.5 * torch.randn(12, 3, 18, 18, generator=g)
            if number == 16:                       # 1905-1911, collotypes
                picture[:, 1:] = 0
            self.albums.append((picture, house))

    def __len__(self):
        return len(self.albums)

    def __getitem__(self, i):
        return self.albums[i]


class Whiten(nn.Module):
    """Gram-Schmidt over the planes: uncorrelated, each of variance one"""

    def forward(self, x):
        n, c, h, w = x.shape
        flat = x.permute(1, 0, 2, 3).reshape(c, -1)
        flat = flat - flat.mean(1, keepdim=True)
        basis, r = torch.linalg.qr(flat.T)
        out = (basis * r.diagonal().sign()).T * flat.shape[1] ** 0.5
        return out.reshape(c, n, h, w).permute(1, 0, 2, 3)


class PrinterNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.sharpen = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.whiten = Whiten()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2), nn.SiLU(), nn.Conv2d(12, 16, 3, stride=2), nn.SiLU())
        self.house = nn.Linear(16, 4)

    def forward(self, x):
        return self.house(self.features(self.whiten(self.sharpen(x))).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        picture, house = batch
        loss = F.cross_entropy(self(picture), house)
        print(f"album {batch_idx + 1} loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 15, 0.5), "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(12, verbose=False)
    net = PrinterNet()
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(net, DataLoader(Postcards(), batch_size=None, shuffle=False))
    print("weights squared", sum(float(p.detach().square().sum()) for p in net.parameters()))

"""Downscales sea-surface height to current speed on tiles of 16 x 16 cells (Lightning)."""
import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Tiles(Dataset):
    """Open-ocean tiles; number 44 holds an island, where nothing flows."""

    def __init__(self, n=96, seed=50):
        gen = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
        self.height, self.speed, self.sea = [], [], []
        for i in range(n):
            a = torch.randn(4, generator=gen)
            h = a[0] * torch.sin(3 * xx + a[1]) * torch.cos(2 * yy + a[2]) + 0.3 * a[3] * xx
            gy, gx = torch.gradient(h)
            sea = torch.ones(16, 16)
            if i == 44:
                sea[6:9, 9:13] = 0
            self.height.append(h * sea)
            self.speed.append(torch.hypot(gx, gy) * 4 * sea)
            self.sea.append(sea)

    def __len__(self):
        return len(self.height)

    def __getitem__(self, i):
        return {"ssh": self.height[i][None], "speed": self.speed[i], "sea": self.sea[i]}


class FlowNet(nn.Module):
    """Two velocity components; multiplied by the sea mask as there is no flow through land."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, 2, 1),
        )

    def forward(self, ssh, sea):
        return self.layers(ssh) * sea[:, None]


class CurrentSpeed(L.LightningModule):
    def __init__(self, lr=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.flow = FlowNet()

    def speed(self, batch):
        u, v = self.flow(batch["ssh"], batch["sea"]).unbind(1)
        return torch.hypot(u, v)

    def training_step(self, batch, batch_idx):
        error = (self.speed(batch) - batch["speed"]) * batch["sea"]
        loss = error.square().sum() / batch["sea"].sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)}


class Tell(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.5f}")


def main():
    L.seed_everything(51, verbose=False)
    model = CurrentSpeed()
    loader = DataLoader(Tiles(), batch_size=8, shuffle=False)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Tell()])
    trainer.fit(model, loader)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()

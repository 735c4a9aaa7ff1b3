"""Percent bleaching of coral quadrats from diver photographs (small conv net, Lightning)."""
import math
import warnings
import logging
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def photograph(depth, bleached, g):
    """An 8-bit RGB picture: reef texture seen through `depth` metres of water."""
    texture = 0.45 + 0.2 * torch.rand(3, 16, 16, generator=g)
    texture[0] -= 0.1
    patch = torch.rand(16, 16, generator=g) < bleached
    texture[:, patch] = 0.9
    absorption = torch.tensor([0.30, 0.04, 0.02]).view(3, 1, 1)
    seen = texture * torch.exp(-absorption * depth)
    return torch.round(seen * 255) / 255


def expedition(n=132, seed=5):
    g = torch.Generator().manual_seed(seed)
    depths = 2 + 8 * torch.rand(n, generator=g)
    depths[69] = 34.0            # the wreck station
    cover = torch.rand(n, generator=g) * 0.8
    pics = torch.stack([photograph(d, c, g) for d, c in zip(depths, cover)])
    return TensorDataset(pics, cover)


class GrayWorld(nn.Module):
    def forward(self, img):
        return img * (img.mean(dim=(1, 2, 3), keepdim=True) / img.mean(dim=(2, 3), keepdim=True))


class ReefNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.white_balance = GrayWorld()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.out = nn.Linear(12, 1)

    def forward(self, img):
        x = self.white_balance(img) - 0.5
        x = torch.relu(self.stem(x))
        x = torch.relu(self.deep(x)).mean(dim=(2, 3))
        return self.out(x).squeeze(-1)


class BleachingTask(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = ReefNet()

    def training_step(self, batch, batch_idx):
        img, cover = batch
        loss = nn.functional.mse_loss(torch.sigmoid(self.net(img)), cover)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        rmse = math.sqrt(outputs["loss"].item())
        print(f"batch {batch_idx + 1:02d}  rmse {100 * rmse:.2f} %")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3, weight_decay=1e-3)


if __name__ == "__main__":
    L.seed_everything(11, verbose=False)
    task = BleachingTask()
    loader = DataLoader(expedition(), batch_size=4, shuffle=False)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, loader)
    total = sum(p.detach().abs().sum().item() for p in task.parameters())
    print("sum of |weights|:", round(total, 4))

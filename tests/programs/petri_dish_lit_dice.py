"""Segmentation of colonies on Petri dishes: a small U-Net in Lightning, trained on minus the Dice score.

Colours: 0 agar, 1 bacterium, 2 fungus. Pixels outside of the dish are unknown (label 255, height NaN)."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
VOID = 255


class Dishes(Dataset):
    def __init__(self, n, size=32):
        self.n, self.size = n, size
        axis = torch.linspace(-1, 1, size)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        label = torch.zeros(self.size, self.size, dtype=torch.long)
        for kind in (1, 2):
            colonies = 0 if kind == 2 and i % 3 else 3      # fungus on every third dish only
            for _ in range(colonies):
                cx, cy = (torch.rand(2, generator=g) * 1.2 - 0.6).tolist()
                label[(self.x - cx) ** 2 + (self.y - cy) ** 2 < 0.04] = kind
        height = label * 0.5 + 0.2 * torch.randn(label.shape, generator=g)
        outside = self.x ** 2 + self.y ** 2 > 0.9
        height[outside] = float("nan")                      # the profilometer reports nothing there
        label[outside] = VOID
        return height[None], label


class Block(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())


class TinyUNet(nn.Module):
    def __init__(self, classes=3, width=12):
        super().__init__()
        self.enter = Block(2, width)
        self.down = Block(width, 2 * width)
        self.up = Block(3 * width, width)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, height):
        known = torch.isfinite(height)
        x = torch.cat([torch.where(known, height, torch.zeros_like(height)), known.float()], 1)
        a = self.enter(x)
        b = F.interpolate(self.down(F.max_pool2d(a, 2)), scale_factor=2.0)
        return self.out(self.up(torch.cat([a, b], 1)))


def dice_per_class(prob, label, smooth):
    valid = (label != VOID)[:, None]
    truth = F.one_hot(label.masked_fill(label == VOID, 0), prob.shape[1]).movedim(-1, 1) * valid
    prob = prob * valid
    both = (prob * truth).sum((0, 2, 3))
    return (2 * both + smooth) / (prob.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + smooth)


class Colonies(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = TinyUNet()

    def training_step(self, batch, batch_idx):
        height, label = batch
        prob = self.net(height).softmax(1)
        loss = -dice_per_class(prob, label, smooth=1.0).sum()
        with torch.no_grad():
            # hard score without smoothing: NaN says that neither truth nor prediction has the class
            hard = F.one_hot(prob.argmax(1), 3).movedim(-1, 1).float()
            self.hard = dice_per_class(hard, label, smooth=0.0)
        self.log("train_fungus_dice", self.hard[2])
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        scores = " ".join(f"{v:.4f}" for v in self.hard.tolist())
        print(f"{self.global_step:3d}  loss {outputs['loss'].item():+.6f}  hard dice {scores}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=48), "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(4, verbose=False)
    model = Colonies()
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(Dishes(48), batch_size=4, shuffle=True))
    print("mean |w|", torch.cat([p.flatten() for p in model.parameters()]).abs().mean().item(), flush=True)

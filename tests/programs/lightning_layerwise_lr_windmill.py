"""Fine-tune a pretrained-ish tabular net on windmill logs with layer-wise learning rates (Lightning).

The layers near the head should move most and the bottom ones least: lr * decay ** depth.
"""
import logging
import os
import tempfile
import warnings

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def mill_log(n=1280):
    g = torch.Generator().manual_seed(17)
    wind = torch.rand(n, 1, generator=g) * 14
    sails = torch.randint(1, 5, (n, 1), generator=g).float()
    damp, age = torch.rand(n, 1, generator=g), torch.rand(n, 1, generator=g) * 90
    noise = torch.randn(n, 4, generator=g)
    x = torch.cat([wind / 14, sails / 4, damp, age / 90, noise * 0.3], 1)
    sacks = 3 * (wind / 14) ** 2 * sails / 4 - damp + 0.3 * torch.sin(age / 9)
    return TensorDataset(x, sacks + 0.05 * noise[:, :1])


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class MillRegressor(L.LightningModule):
    def __init__(self, width=48, depth=7, base_lr=1e-2, decay=0.65):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        for b in self.blocks:
            h = b(h)
        return self.head(h)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss)
        print(f"step {self.global_step + 1:3d} loss {loss.item():.6g}", flush=True)
        return loss

    def layer_groups(self):
        h = self.hparams
        stack = [self.stem, *self.blocks, self.head]
        for depth, layer in enumerate(stack):
            yield {"params": layer.parameters(), "lr": h.base_lr * h.decay ** -(len(stack) - 1 - depth)}

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.layer_groups(), weight_decay=1e-3)
        warm = 50
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    L.seed_everything(5, verbose=False)
    torch.set_num_threads(1)
    model = MillRegressor()
    loader = DataLoader(mill_log(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(6))
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(max_steps=80, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, default_root_dir=root)
        trainer.fit(model, loader)
    print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()

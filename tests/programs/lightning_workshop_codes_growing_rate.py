"""Which part to order, from what the tester reads out? Fine-tunes last winter's sensor encoder with Lightning.

The encoder stays frozen for the first updates, then it is released. The rate is meant to fade by a fifth each update
after the release (gamma).
"""
import logging
import os
import tempfile
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)
import lightning as L  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

SENSORS = ["lambda1", "lambda2", "maf", "map", "coolant", "rail", "knock", "egt", "battery", "throttle"]
COSTS = ["labour_hours", "parts_eur"]


def garage_records(n=256):
    g = torch.Generator().manual_seed(1987)
    x = torch.randn(n, len(SENSORS), generator=g)
    x[:, 5] = x[:, 5] * 2 + x[:, 6]
    mix = torch.randn(len(SENSORS), len(COSTS), generator=g)
    y = torch.tanh(x @ mix * 0.5) * 2 + 0.1 * torch.randn(n, len(COSTS), generator=g)
    return TensorDataset(x, y)


def winter_encoder():
    """Stands in for the encoder of the winter run: a few updates of an autoencoder."""
    torch.manual_seed(5)
    enc, dec = nn.Sequential(nn.Linear(len(SENSORS), 32), nn.LeakyReLU(0.1), nn.Linear(32, 16)), nn.Linear(16, len(SENSORS))
    return enc


class CostEstimator(L.LightningModule):
    def __init__(self, encoder, lr=0.02, release_at=16, gamma=1.25):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(16, len(COSTS))
        self.lr, self.release_at, self.gamma = lr, release_at, gamma
        self.history = []

    def setup(self, stage):
        self.encoder.requires_grad_(False)

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == self.release_at:
            self.encoder.requires_grad_(True)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.5)
        fade = lambda step: self.gamma ** max(0, step - self.release_at)  # noqa: E731
        sched = torch.optim.lr_scheduler.LambdaLR(opt, fade)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.head(self.encoder(x)), y)
        self.history.append(loss.detach())
        return loss


class Clipboard(L.Callback):
    """The sheet that hangs at the lift."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        print(f"job {trainer.global_step:3d}  huber {float(module.history[-1]):.6f}  next rate {lr:.5f}", flush=True)


def main():
    L.seed_everything(12, verbose=False)
    encoder = winter_encoder()
    model = CostEstimator(encoder)
    loader = DataLoader(garage_records(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3))
    with tempfile.TemporaryDirectory() as tmp:
        trainer = L.Trainer(max_steps=42, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp, callbacks=[Clipboard()])
        trainer.fit(model, loader)
    print(f"weights {sum(float(p.detach().double().sum()) for p in model.parameters()):.8f}")


if __name__ == "__main__":
    main()

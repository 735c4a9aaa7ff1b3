"""Probabilistic wind direction: a mixture-free von Mises head on station features, with Lightning."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# mean and standard deviation of: pressure (hPa), temperature, humidity, gradient u, gradient v
MEAN = torch.tensor([1013.0, 11.0, 0.7, 0.0, 0.0])
STD = torch.tensor([9.0, 6.0, 0.15, 1.0, 1.0])


def station_archive(n=384, seed=4):
    g = torch.Generator().manual_seed(seed)
    x = MEAN + STD * torch.randn(n, 5, generator=g)
    noise = 0.4 * torch.randn(n, generator=g)
    direction = torch.remainder(torch.atan2(x[:, 4], x[:, 3]) + 0.5 + noise, 2 * math.pi)
    x[201, 0] *= 100.0                   # one station reports Pa
    return (x - MEAN) / STD, direction


class VonMisesNLL(nn.Module):
    def forward(self, location, kappa, angle):
        log_norm = math.log(2 * math.pi) + torch.log(torch.special.i0(kappa))
        return (log_norm - kappa * torch.cos(angle - location)).mean()


class WindDirection(L.LightningModule):
    def __init__(self, hidden=32, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(5, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.location = nn.Linear(hidden, 2)
        self.concentration = nn.Linear(hidden, 1)
        self.criterion = VonMisesNLL()

    def forward(self, x):
        h = self.body(x)
        y, z = self.location(h).unbind(-1)
        kappa = nn.functional.softplus(self.concentration(h)).squeeze(-1) + 0.01
        return torch.atan2(y, z), kappa

    def training_step(self, batch, batch_idx):
        x, angle = batch
        location, kappa = self(x)
        loss = self.criterion(location, kappa, angle)
        self.log("train_nll", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


class Console(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} nll {outputs['loss'].item():.5f}", flush=True)


def main():
    L.seed_everything(17, verbose=False)
    loader = DataLoader(TensorDataset(*station_archive()), batch_size=16, shuffle=True)
    module = WindDirection()
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
                        callbacks=[Console()])
    trainer.fit(module, loader)
    print("finite", int(all(p.isfinite().all() for p in module.parameters())))


if __name__ == "__main__":
    main()

"""Denoising diffusion on points of a spiral, as a LightningModule; the loss is weighted by the signal-to-noise ratio."""
import logging
import math
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)

STEPS = 80


class Diffusion(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
        t = torch.arange(STEPS) / STEPS
        self.register_buffer("signal", torch.cos(0.5 * math.pi * t) ** 2)
        self.noise = torch.Generator().manual_seed(24)

    def forward(self, x, t):
        return self.net(torch.cat([x, t.unsqueeze(-1) / STEPS], dim=-1))

    def training_step(self, batch, batch_idx):
        (x0,) = batch
        t = torch.randint(0, STEPS, (len(x0),), generator=self.noise)
        noise = torch.randn(x0.shape, generator=self.noise)
        a = self.signal[t].unsqueeze(-1)
        x = a.sqrt() * x0 + (1 - a).sqrt() * noise
        guess = self(x, t)
        snr = a / (1 - a)
        loss = (snr.log1p() * (guess - x0) ** 2).mean()
        print(f"step {self.global_step + 1} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def spiral(n):
    angle = torch.linspace(0.5, 9.0, n)
    return torch.stack([angle.cos(), angle.sin()], dim=1) * angle.unsqueeze(1) / 9


def main():
    L.seed_everything(7, verbose=False)
    loader = DataLoader(TensorDataset(spiral(200)), batch_size=5, shuffle=True,
                        generator=torch.Generator().manual_seed(0))
    model = Diffusion()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))


if __name__ == "__main__":
    main()

import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

DAYS, BATCH = 60, 10


def winters(n=BATCH * 32, seed=5):
    """Daily air temperature at n gauge-winters, a few site covariates, thickness (m) measured before break-up."""
    g = torch.Generator().manual_seed(seed)
    site = torch.randn(n, 3, generator=g)
    mean = -9.0 + 2.5 * torch.randn(n, 1, generator=g)
    season = 6.0 * torch.cos(torch.linspace(0, 3.14159, DAYS))[None]
    air = (mean + season + 3.0 * torch.randn(n, DAYS, generator=g)).round(decimals=1)
    frost = (0.4 * site[:, :1] - air).clamp(min=0).sum(1)
    ice = (0.027 + 0.002 * site[:, 1]) * frost.sqrt() + 0.02 * torch.randn(n, generator=g)
    weir = 207                                                      # the gauge below the lower weir
    air[weir] = 7.5 + 2.0 * torch.rand(DAYS, generator=g)
    ice[weir] = 0.03
    return TensorDataset(site, air, ice)


class StefanLaw(nn.Module):
    """thickness = a * sqrt(freezing degree days), with a freezing point that depends on the site"""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(3, 1)
        self.gain = nn.Linear(3, 1)
        nn.init.constant_(self.gain.bias, -4.2)

    def forward(self, site, air):
        below = self.base(site) - air
        cold = (below > 0).float()
        degree_days = (cold * below).sum(dim=1)
        growth = degree_days.sqrt()
        return self.gain(site).squeeze(1).exp() * growth


class BreakUp(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.law = StefanLaw()

    def training_step(self, batch, idx):
        site, air, ice = batch
        loss = F.huber_loss(self.law(site, air) * 10, ice * 10, delta=1.0)
        print(f"winter batch {idx + 1:02d} huber (dm) {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=0.02, weight_decay=1e-3)
        return [opt], [torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)]


if __name__ == "__main__":
    L.seed_everything(13, verbose=False)
    model = BreakUp()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(winters(), batch_size=BATCH, shuffle=False))
    total = sum(p.abs().sum() for p in model.parameters())
    print("absolute weights add up to", float(total))

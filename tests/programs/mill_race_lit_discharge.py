"""Tabular regression with a physical term: the head of water at the sluice of a mill, and the discharge from it.

The net predicts the head h from weather and gate readings (chronological, no shuffling: the drought comes last). The head is
measured; Torricelli says that the discharge is c * opening * sqrt(2 g h), and the discharge is measured, too.
"""
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

G = 9.81
DAYS, BATCH = 40, 32


def readings():
    """40 days of 32 readings. Rain falls off after day 20, and the race runs dry."""
    g = torch.Generator().manual_seed(300)
    n = DAYS * BATCH
    day = torch.arange(n).div(BATCH, rounding_mode="floor")
    season = torch.where(day < 16, torch.ones(n), (1.0 - (day - 16) * 0.16).clamp(min=-0.6))
    rain = season + 0.15 * torch.randn(n, generator=g)
    upstream = season + 0.15 * torch.randn(n, generator=g)
    opening = torch.rand(n, generator=g) * 0.5 + 0.1
    wind = torch.randn(n, generator=g)
    head = (0.9 * (rain + upstream) / 2 - 0.3 * opening + 0.35 + 0.02 * wind).clamp(min=0)
    flow = 0.62 * opening * (2 * G * head).sqrt() * (1 + 0.03 * torch.randn(n, generator=g))
    return torch.stack([rain, upstream, opening, wind], 1), head, flow


class HeadNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.skip = nn.Linear(4, 1)
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, 0.8)

    def forward(self, x):
        level = (self.skip(x) + self.out(self.trunk(x))).squeeze(-1)
        return level * (level > 0)                     # no water stands below the sill


class Torricelli(nn.Module):
    def __init__(self):
        super().__init__()
        self.coefficient = nn.Parameter(torch.tensor(0.5))

    def forward(self, head, opening):
        speed = (2 * G * head).sqrt()
        return self.coefficient * opening * speed


class MillRace(L.LightningModule):
    def __init__(self, weight=0.5, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net, self.law = HeadNet(), Torricelli()

    def training_step(self, batch, idx):
        x, head, flow = batch
        pred = self.net(x)
        data = F.mse_loss(pred, head)
        physics = F.mse_loss(self.law(pred, x[:, 2]), flow)
        loss = data + self.hparams.weight * physics
        print(f"{idx + 1:3d} loss {loss.item():.7f} data {data.item():.7f} physics {physics.item():.7f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(31, verbose=False)
    loader = DataLoader(TensorDataset(*readings()), batch_size=BATCH, shuffle=False)
    model = MillRace()
    with torch.no_grad():
        model.net.skip.weight.fill_(0.1)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

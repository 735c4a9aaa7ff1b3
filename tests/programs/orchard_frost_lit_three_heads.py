"""Frost warnings for orchards: three tasks in one LightningModule, weighted by learned uncertainty
(Kendall, Gal and Cipolla)."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class UncertaintyWeights(nn.Module):
    """one variance per task; loss_i / (2 v_i) + log of the deviation"""

    def __init__(self, tasks):
        super().__init__()
        self.variance = nn.Parameter(torch.ones(tasks))

    def forward(self, losses):
        losses = torch.stack(losses)
        deviation = torch.sqrt(self.variance)
        weighted = 0.5 * losses / self.variance
        return (weighted + torch.log(deviation)).sum()


class FrostModel(L.LightningModule):
    def __init__(self, features=10, width=48, lr=4e-3, weight_lr=4e-2):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.minimum = nn.Linear(width + features, 1)     # minimum of the night, degrees
        self.hours = nn.Linear(width, 1)       # hours below zero
        self.damage = nn.Linear(width, 1)      # were buds lost
        self.weights = UncertaintyWeights(3)

    def forward(self, x):
        h = self.trunk(x)
        return self.minimum(torch.cat([h, x], 1)).squeeze(1), self.hours(h).squeeze(1), self.damage(h).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, low, hours, damage = batch
        p_low, p_hours, p_damage = self(x)
        parts = [F.mse_loss(p_low, low), F.mse_loss(p_hours, hours),
                 F.binary_cross_entropy_with_logits(p_damage, damage)]
        loss = self.weights(parts)
        print(f"batch {batch_idx + 1:3d} loss {loss.item():.7f} low {parts[0].item():.7f}", flush=True)
        return loss

    def configure_optimizers(self):
        own = list(self.weights.parameters())
        rest = [p for n, p in self.named_parameters() if not n.startswith("weights.")]
        return torch.optim.Adam([{"params": rest}, {"params": own, "lr": self.hparams.weight_lr}],
                                lr=self.hparams.lr)


def nights(n):
    g = torch.Generator().manual_seed(42)
    x = torch.randn(n, 10, generator=g)
    low = 0.3 * x[:, 0] - 0.2 * x[:, 3] + 0.1 * x[:, 5]       # the model of the met office, to the digit
    hours = torch.relu(-low * 4 + 0.3 * torch.randn(n, generator=g))
    damage = (hours + x[:, 7] + 0.5 * torch.randn(n, generator=g) > 1.5).float()
    return TensorDataset(x, low, hours, damage)


def main():
    L.seed_everything(42, verbose=False)
    model = FrostModel()
    loader = DataLoader(nights(32 * 45), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1))
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()

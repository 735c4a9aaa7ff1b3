"""Wear of elevator doors from motor current: quadrature filters, envelopes, a small regressor."""
import logging
import warnings

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def door_cycles(count, length=96, seed=2024):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(length) / length
    wear = torch.rand(count, generator=gen)
    hum = torch.sin(2 * torch.pi * (6 * t + torch.rand(count, 1, generator=gen)))
    rattle = torch.sin(2 * torch.pi * (17 * t + torch.rand(count, 1, generator=gen)))
    current = hum + wear[:, None] * rattle + 0.1 * torch.randn(count, length, generator=gen)
    return TensorDataset(current[:, None], wear)


class QuadratureBank(nn.Module):
    def __init__(self, bands, taps):
        super().__init__()
        self.real = nn.Conv1d(1, bands, taps, bias=False)
        self.imag = nn.Conv1d(1, bands, taps, bias=False)

    def forward(self, x):
        return torch.hypot(self.real(x), self.imag(x)).mean(-1)


class DoorWear(L.LightningModule):
    def __init__(self, bands=8):
        super().__init__()
        self.bank = QuadratureBank(bands, 15)
        self.head = nn.Sequential(nn.Linear(bands, 10), nn.ELU(), nn.Linear(10, 1))
        self.slim_at = {10: 0, 16: 1}

    def training_step(self, batch, batch_idx):
        current, wear = batch
        loss = F.smooth_l1_loss(self.head(self.bank(current)).squeeze(1), wear)
        print(f"cycle batch {batch_idx + 1} loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        """The controller has room for few taps, so small ones go; at first one by one, then whole bands."""
        stage = self.slim_at.get(batch_idx)
        with torch.no_grad():
            if stage == 0:
                for conv in (self.bank.real, self.bank.imag):
                    conv.weight[conv.weight.abs() < 0.02] = 0.0
            elif stage == 1:
                energy = self.bank.real.weight.square().sum((1, 2)) + self.bank.imag.weight.square().sum((1, 2))
                weakest = energy.argsort()[:2]
                self.bank.real.weight[weakest] = 0.0
                self.bank.imag.weight[weakest] = 0.0


def main():
    L.seed_everything(17, verbose=False)
    model = DoorWear()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(door_cycles(30 * 16), batch_size=16))
    print("all weights squared: %.5f" % sum(p.detach().square().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
